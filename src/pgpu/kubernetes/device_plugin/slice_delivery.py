"""How a container of a device plugin gets its slice: as a CDI device where kubelet and runtime know them, else as mounts.

The kubelet keeps what it was answered as long as the pod lives, over restarts of itself and of the node; the paths of slices do not
last so long. So what it is told does not change: a CDI device's name, or links of ours that lead to wherever the slice lies now.
A runtime too old for CDI ignores such devices without a word, so who chooses must be sure; mounts work everywhere. They cannot
carry the hooks and groups of a GPU maker's CDI file: these are left out, and nothing of a limit depends on them.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pgpu.errors import EnforcementError
from pgpu.kubernetes.dra.cdi_files import CdiFiles, content_of, device_id
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as wire
from pgpu.model import Delivery, HeldClaim

Edits = Callable[[Delivery, Path], Mapping[str, list[Any]]]
"""Returns the `containerEdits` of a slice, given the seal that no other slice has."""

_READ_ONLY = "ro"


class SliceDelivery(Protocol):
    """Brings a slice into the containers that have it."""

    def put(self, held: HeldClaim) -> None:
        """Make what is needed outside of containers, or make it again; the same slice may lie elsewhere than before.

        Raises:
            NodeError: It cannot be written.
        """
        ...

    def take(self, uid: str) -> None:
        """Remove what was put; does nothing where nothing was.

        Raises:
            NodeError: It cannot be removed.
        """
        ...

    def answer(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """Return what the kubelet must do with the container. It stays true until the slice is taken."""
        ...


class CdiDelivery:
    """By the name of a CDI device."""

    def __init__(self, files: CdiFiles, edits: Edits) -> None:
        """Args: where CDI files lie, and what stands in them."""
        self._files = files
        self._edits = edits

    def put(self, held: HeldClaim) -> None:
        """See `SliceDelivery.put`."""
        uid = held.claim.uid
        self._files.put(uid, content_of(uid, dict(self._edits(held.delivery, self._files.seal_of(uid)))))

    def take(self, uid: str) -> None:
        """See `SliceDelivery.take`."""
        self._files.take(uid)

    def answer(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """See `SliceDelivery.answer`."""
        return wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name=device_id(held.claim.uid))])


class MountDelivery:
    """By mounts of links, environment and device nodes."""

    def __init__(self, folder: Path, edits: Edits) -> None:
        """Write nothing yet.

        Args:
            folder: Where links lie: a path that means the same on the host.
            edits: What a slice changes in a container.
        """
        self._folder = folder
        self._edits = edits

    def put(self, held: HeldClaim) -> None:
        """See `SliceDelivery.put`."""
        home = self._home(held.claim.uid)
        try:
            home.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._seal(held).parent.mkdir(mode=0o755, exist_ok=True)
            self._seal(held).touch(mode=0o444)
            for number, mount in enumerate(self._edited(held).get("mounts", ())):
                _link(home / str(number), Path(mount["hostPath"]))
        except OSError as exc:
            raise EnforcementError(f"{exc.filename or home} cannot be written: {exc.strerror}") from exc

    def take(self, uid: str) -> None:
        """See `SliceDelivery.take`."""
        try:
            shutil.rmtree(self._home(uid))
        except FileNotFoundError:
            return
        except OSError as exc:
            raise EnforcementError(f"{exc.filename or uid} cannot be removed: {exc.strerror}") from exc

    def answer(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """See `SliceDelivery.answer`."""
        edited, home = self._edited(held), self._home(held.claim.uid)
        words = (word.partition("=") for word in edited.get("env", ()))
        return wire.ContainerAllocateResponse(
            envs={name: value for name, _, value in words},
            mounts=[_mount(home / str(number), mount) for number, mount in enumerate(edited.get("mounts", ()))],
            devices=[_device(node) for node in edited.get("deviceNodes", ())],
        )

    def _edited(self, held: HeldClaim) -> Mapping[str, list[Any]]:
        return self._edits(held.delivery, self._seal(held))

    def _home(self, uid: str) -> Path:
        return self._folder / uid

    def _seal(self, held: HeldClaim) -> Path:
        return self._home(held.claim.uid) / "seal" / held.claim.uid


def _link(link: Path, target: Path) -> None:
    """Lead a link somewhere else at one stroke: a container may be starting."""
    scratch = link.with_name(f".{link.name}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(link)


def _mount(source: Path, mount: Mapping[str, Any]) -> wire.Mount:
    is_read_only = _READ_ONLY in mount.get("options", ())
    return wire.Mount(container_path=mount["containerPath"], host_path=str(source), read_only=is_read_only)


def _device(node: Mapping[str, Any]) -> wire.DeviceSpec:
    return wire.DeviceSpec(
        container_path=node["path"],
        host_path=node.get("hostPath", node["path"]),
        permissions=node.get("permissions", "rwm"),
    )
