"""What a container of a user other than root may be.

The user named no more than an image, a command and volumes; the rest of what an engine could be asked for is said here,
against whatever the image asks for. It refuses; it never mends a request in silence.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.model import Account, JobSpec, Mount

SOCKETS_OF_ROOT = tuple(
    map(Path, ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"))
)
"""Through these everybody is root; where one lies elsewhere it is the engine's own, which its caller adds."""

_OPTIONS = {"", "ro", "rw"}


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


def confined(configuration: dict[str, Any], account: Account, volumes: Sequence[Mount]) -> dict[str, Any]:
    """Return the body of `POST /containers/create` for a user other than root.

    No group but the user's own first one: the engine looks the others up by name in the image's own /etc/group, where
    whoever made the image decides what they mean.

    Args:
        configuration: The body for root.
        account: Under which it runs.
        volumes: The job's, with sources that nobody but root can change.
    """
    host = configuration["HostConfig"]
    return {
        **configuration,
        "User": f"{account.uid}:{account.gid}",
        "HostConfig": {
            **host,
            "Binds": [],
            "Mounts": [*map(_mount, volumes), *host["Mounts"]],
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
            "CapAdd": [],
            "Privileged": False,
            "Devices": [],
            "GroupAdd": [],
            "PidMode": "",
            "IpcMode": "private",
            "UTSMode": "",
            "UsernsMode": "",
            "NetworkMode": "default",
        },
    }


def _mount(volume: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": volume.source,
        "Target": volume.target,
        "ReadOnly": volume.options == "ro",
        "BindOptions": {"Propagation": "rprivate"},
    }
