"""How a container of the device plugin gets its slice: as a CDI device if kubelet and runtime support it, else as mounts.

The kubelet keeps the answer as long as the pod lives, across its own and the node's restarts, but the slice's paths do not live as
long. So answers contain only what does not change: a CDI device name, or links whose targets are updated. A runtime without CDI
ignores CDI devices without an error, so CDI is used only where support is certain. Mounts cannot express the hooks and groups of a
vendor's CDI file; the limit depends on neither.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pgpu.errors import EnforcementError
from pgpu.kubernetes.cdi_files import CdiFiles, content_of, device_id
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as wire
from pgpu.model import Delivery, HeldClaim

Edits = Callable[[Delivery, Path], Mapping[str, list[Any]]]
"""Returns the `containerEdits` of a slice, given its seal."""


class SliceDelivery(Protocol):
    """Brings slices into containers."""

    def put(self, held: HeldClaim) -> None:
        """Create or update what containers of a slice need on the host; the slice's paths may have changed.

        Raises:
            NodeError: It cannot be written.
        """
        ...

    def take(self, uid: str) -> None:
        """Remove what was put; does nothing if nothing was.

        Raises:
            NodeError: It cannot be removed.
        """
        ...

    def response(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """Return the kubelet's instructions for a container; they stay valid until the slice is taken."""
        ...


class CdiDelivery:
    """Delivers by the name of a CDI device."""

    def __init__(self, files: CdiFiles, edits: Edits) -> None:
        self._files = files
        self._edits = edits

    def put(self, held: HeldClaim) -> None:
        """See `SliceDelivery.put`."""
        uid = held.claim.uid
        self._files.put(uid, content_of(uid, dict(self._edits(held.delivery, self._files.seal_of(uid)))))

    def take(self, uid: str) -> None:
        """See `SliceDelivery.take`."""
        self._files.take(uid)

    def response(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """See `SliceDelivery.response`."""
        return wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name=device_id(held.claim.uid))])


class MountDelivery:
    """Delivers by mounts of symbolic links, environment and device nodes."""

    def __init__(self, folder: Path, edits: Edits) -> None:
        """Write nothing yet; the links lie in `folder`, a path that means the same on the host."""
        self._folder = folder
        self._edits = edits

    def put(self, held: HeldClaim) -> None:
        """See `SliceDelivery.put`."""
        home, seal = self._folder / held.claim.uid, self._seal(held)
        try:
            home.mkdir(mode=0o755, parents=True, exist_ok=True)
            seal.parent.mkdir(mode=0o755, exist_ok=True)
            # Only its name matters; see `container_edits`.
            seal.touch(mode=0o444)
            for number, mount in enumerate(self._edited(held).get("mounts", ())):
                # Renamed into place, since a container may be starting at this moment.
                scratch = home / f".{number}"
                scratch.unlink(missing_ok=True)
                scratch.symlink_to(Path(mount["hostPath"]))
                scratch.replace(home / str(number))
        except OSError as exc:
            raise EnforcementError(f"{exc.filename or home} cannot be written: {exc.strerror}") from exc

    def take(self, uid: str) -> None:
        """See `SliceDelivery.take`."""
        try:
            shutil.rmtree(self._folder / uid)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise EnforcementError(f"{exc.filename or uid} cannot be removed: {exc.strerror}") from exc

    def response(self, held: HeldClaim) -> wire.ContainerAllocateResponse:
        """See `SliceDelivery.response`."""
        edited, home = self._edited(held), self._folder / held.claim.uid
        variables = (variable.partition("=") for variable in edited.get("env", ()))
        return wire.ContainerAllocateResponse(
            envs={name: value for name, _, value in variables},
            mounts=[
                wire.Mount(
                    container_path=mount["containerPath"],
                    # The link, not its target: the kubelet keeps this path for the life of the pod.
                    host_path=str(home / str(number)),
                    read_only="ro" in mount.get("options", ()),
                )
                for number, mount in enumerate(edited.get("mounts", ()))
            ],
            devices=[
                wire.DeviceSpec(
                    container_path=node["path"],
                    host_path=node.get("hostPath", node["path"]),
                    permissions=node.get("permissions", "rwm"),
                )
                for node in edited.get("deviceNodes", ())
            ],
        )

    def _edited(self, held: HeldClaim) -> Mapping[str, list[Any]]:
        return self._edits(held.delivery, self._seal(held))

    def _seal(self, held: HeldClaim) -> Path:
        return self._folder / held.claim.uid / "seal" / held.claim.uid
