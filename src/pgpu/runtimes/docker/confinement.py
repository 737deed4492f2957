"""What a container of a user other than root may be.

The user named no more than an image, a command and volumes; the rest of what an engine could be asked for is said here,
against whatever the image asks for. It refuses; it never mends a request in silence.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.libraries import ENTER
from pgpu.model import Account, JobSpec, Mount
from pgpu.runtimes.docker.image.facts import ImageFacts
from pgpu.runtimes.docker.mounting import JOB_DIRECTORY
from pgpu.runtimes.docker.nesting import plain

SOCKETS_OF_ROOT = tuple(
    map(Path, ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"))
)
"""Through these everybody is root; where one lies elsewhere it is the engine's own, which its caller adds."""

_OPTIONS = {"", "ro", "rw"}
_NETWORKS = {None, "none", "bridge", "default"}
"""The machine's own, or another container's, would show what is not the user's."""


def is_confined(account: Account | None) -> bool:
    """Whether a container is held to what its asker may do; root's, and everybody's own without a server, are not."""
    return account is not None and account.uid not in {0, os.geteuid()}


def refuse_more_than_own(spec: JobSpec, account: Account) -> None:
    """Raise RequestError where a request goes past what its user may do without a container.

    Args:
        spec: What is asked for.
        account: By whom; not root.
    """
    own = {None, str(account.uid), f"{account.uid}:{account.gid}"}
    if spec.user not in own:
        raise RequestError(
            f"a container here runs as its asker, {account.uid}:{account.gid}",
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
            f"the volume {volume.source!r} is the engine's, and whose it is cannot be told",
            hint="name a directory of yours; only root may use the engine's volumes",
        )
    if volume.options not in _OPTIONS:
        raise RequestError(
            f"the option {volume.options!r} of the volume {volume.source} is root's to ask for", hint="use ro or rw"
        )


def groups_to_add(account: Account, facts: ImageFacts, volumes: Sequence[Mount]) -> tuple[int, ...]:
    """Return the supplementary groups that a container can have; none where the engine might take one for another.

    Docker looks numbers up as names, too, in the image's own /etc/group, and Podman in a volume's: there whoever made it
    decides what they mean, and a line `1001:x:42:` makes 1001 the machine's group 42.

    Args:
        account: Whose groups.
        facts: Of the image alone, without volumes.
        volumes: What lies over its files.
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
        volumes: The job's, with sources that nobody but root can change.
        image: The engine's description of its image.
        groups: The supplementary ones, as `groups_to_add` has them.
    """
    host = configuration["HostConfig"]
    return {
        **configuration,
        **_entering(configuration, image.get("Config") or {}),
        "User": f"{account.uid}:{account.gid}",
        "WorkingDir": "/",
        "HostConfig": {
            **host,
            "Binds": [],
            "Mounts": [*map(_mount, volumes), *host["Mounts"]],
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
    """Return the words that enter the working directory as the user; the engine would, or would make it, as root."""
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
