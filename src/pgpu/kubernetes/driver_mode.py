"""One driver, in one mode, on a node: either ResourceClaims or units of the device plugin.

Two drivers, or two modes at a time, would count each other's slices as their own. A lock file keeps a second driver out;
slices of the other mode that an earlier driver left are freed if no pod can use them, else the driver does not start.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from pgpu.engine.claims import Claims
from pgpu.errors import NodeError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.host.ownership import check_state_directory
from pgpu.kubernetes.pod_shares import PodResources
from pgpu.kubernetes.unit_ids import RESOURCE, is_ours
from pgpu.ledger import ClaimRecord


class Mode(StrEnum):
    """How the kubelet requests slices."""

    DRA = "dra"
    DEVICE_PLUGIN = "device-plugin"


@contextlib.contextmanager
def alone_on_node(state_directory: Path) -> Iterator[None]:
    """Hold the lock of this node's one driver for the block.

    Raises:
        NodeError: Another driver holds it, or the directory is not this user's alone.
    """
    check_state_directory(state_directory)
    path = state_directory / "driver.lock"
    try:
        descriptor = open_lock_file(path)
    except OSError as exc:
        raise NodeError(f"{path} cannot be opened: {exc.strerror}") from exc
    try:
        # The kernel releases the lock when the process ends, however it ends.
        if not try_flock(descriptor):
            raise NodeError(f"another driver runs on this node ({path})", hint="is its pod still ending?")
        yield
    finally:
        os.close(descriptor)


def enter_mode(mode: Mode, claims: Claims, pods: PodResources) -> None:
    """Free the slices that the other mode left and no pod uses.

    Raises:
        NodeError: Slices of the other mode are held, and may be in use.
    """
    others = [each for each in claims.records().values() if is_ours(each.claim) == (mode is Mode.DRA)]
    if not others:
        return
    if mode is Mode.DEVICE_PLUGIN:
        raise _refusal(mode, others, "the kubelet gives them back when their pods are gone")
    found = pods.pods()
    if not found:  # a kubelet lists none until it has them from the API server
        raise _refusal(mode, others, "the kubelet does not know its pods yet")
    users = [
        f"{pod.namespace}/{pod.name}"
        for pod in found
        if any(units.resource == RESOURCE and units.ids for container in pod.containers for units in container.units)
    ]
    if users:
        raise _refusal(mode, others, f"pods have them: {', '.join(users)}")
    uses = claims.uses()
    busy = [each for each in others for use in uses.get(each.claim.uid, ()) if use.processes or use.used_bytes]
    if busy:
        raise _refusal(mode, busy, "processes use them")
    for each in others:
        claims.free(each.claim.uid)


def _refusal(mode: Mode, others: Sequence[ClaimRecord], why: str) -> NodeError:
    other = Mode.DRA if mode is Mode.DEVICE_PLUGIN else Mode.DEVICE_PLUGIN
    return NodeError(
        f"this node still has {len(others)} slices of --mode {other}, so --mode {mode} cannot begin: {why}",
        hint=f"start it with --mode {other} again, and drain the node before its mode is changed",
    )
