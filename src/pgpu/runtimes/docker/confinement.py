"""Restrictions for containers of users other than root.

The user chooses an image, a command and volumes only. All other fields of the engine's request are set here and override
the image's. A request that exceeds the user's rights is rejected, never changed silently.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.libraries import ENTER
from pgpu.model import Account, JobSpec, Mount
from pgpu.runtimes.docker.image_facts import ImageFacts
from pgpu.runtimes.docker.mounts import JOB_DIRECTORY, plain

SOCKETS_OF_ROOT = tuple(
    map(Path, ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"))
)
"""Access to one of these equals root access. The socket of an engine elsewhere is added by the caller."""

_OPTIONS = {"", "ro", "rw"}
_NETWORKS = {None, "none", "bridge", "default"}
"""Networks of the host or of another container would expose other users' services."""


def is_confined(account: Account | None) -> bool:
    """True if a container is restricted to the rights of its user; not for root, and not without a server."""
    return account is not None and account.uid not in {0, os.geteuid()}


def refuse_more_than_own(spec: JobSpec, account: Account) -> None:
    """Raise RequestError if a spec exceeds the user's rights outside of a container.

    Args:
        spec: The job.
        account: Its user; not root.
    """
    own = {None, str(account.uid), f"{account.uid}:{account.gid}"}
    if spec.user not in own:
        raise RequestError(
            f"a container here runs as the user of the request, {account.uid}:{account.gid}",
            hint="leave --user out; only root may choose",
        )
    if spec.network not in _NETWORKS:
        raise RequestError(
            f"the network {spec.network!r} is root's to ask for", hint="a sealed container has none, or bridge"
        )
    for volume in spec.volumes:
        _refuse_volume(volume)


def _refuse_volume(volume: Mount) -> None:
    if not volume.source.startswith("/"):
        raise RequestError(
            f"the volume {volume.source!r} is the engine's, and has no known owner",
            hint="name a directory of yours; only root may use the engine's volumes",
        )
    if volume.options not in _OPTIONS:
        raise RequestError(
            f"the option {volume.options!r} of the volume {volume.source} is root's to ask for", hint="use ro or rw"
        )


def groups_to_add(account: Account, facts: ImageFacts, volumes: Sequence[Mount]) -> tuple[int, ...]:
    """Return the supplementary groups for a container; none if the engine could resolve one to another group.

    Docker also resolves numbers as names in the image's /etc/group, and Podman in a volume's. The author of that file
    then decides the meaning: with a line `1001:x:42:`, group 1001 becomes the machine's group 42.

    Args:
        account: With the groups.
        facts: Of the image without volumes.
        volumes: Mounted over the image's files.
    """
    targets = [plain(volume.target) for volume in volumes]
    if facts.has_numbered_groups or any(target == "/etc" or target.startswith("/etc/") for target in targets):
        return ()
    return tuple(group for group in account.groups if group != account.gid)


def confined(
    configuration: dict[str, Any],
    account: Account,
    volumes: Sequence[Mount],
    image: Mapping[str, Any],
    groups: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the body of `POST /containers/create` for a user other than root.

    Args:
        configuration: The body for root.
        account: Under which it runs.
        volumes: The job's, with sources that only root can change.
        image: The engine's description of its image.
        groups: The supplementary groups, from `groups_to_add`.
    """
    host = configuration["HostConfig"]
    return {
        **configuration,
        # Each field that could widen the user's rights is set: neither the image's value nor the engine's default applies.
        **_entering(configuration, image.get("Config") or {}),
        "User": f"{account.uid}:{account.gid}",
        "WorkingDir": "/",
        "HostConfig": {
            **host,
            "Binds": [],
            # Mounts instead of Binds: for a bind the engine creates a missing source, as root.
            "Mounts": [*map(_mount, volumes), *host["Mounts"]],
            # A setuid program of the image, or one in a volume, gains nothing.
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
            "CapAdd": [],
            "Privileged": False,
            "Devices": [],
            "GroupAdd": [str(group) for group in groups],
            "PidMode": "",
            "IpcMode": "private",
            "UTSMode": "",
            "UsernsMode": "",
            "NetworkMode": host.get("NetworkMode", "default"),
        },
    }


def _entering(configuration: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return a command that enters the working directory as the user; the engine would enter or create it as root."""
    directory = plain(f"/{configuration['WorkingDir'] or image.get('WorkingDir') or ''}")
    if directory == "/":
        return {}
    own = {} if "Entrypoint" in configuration else {"Entrypoint": image.get("Entrypoint"), "Cmd": image.get("Cmd")}
    words = {**own, **configuration}
    return {
        "Entrypoint": [f"{JOB_DIRECTORY}/{ENTER}", directory],
        "Cmd": [*(words.get("Entrypoint") or ()), *(words.get("Cmd") or ())],
    }


def _mount(volume: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": volume.source,
        "Target": volume.target,
        "ReadOnly": volume.options == "ro",
        "BindOptions": {"Propagation": "rprivate"},
    }
