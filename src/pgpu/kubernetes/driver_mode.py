"""A node gives slices to ResourceClaims or to units of the device plugin, never to both: each would count the other's as its own.

That only one driver runs is a lock's work. This module looks at what an earlier driver of the other kind left: it refuses to begin
while anything of it may be in use.
"""

from collections.abc import Sequence
from enum import StrEnum

from pgpu.engine.claims import Claims
from pgpu.errors import NodeError
from pgpu.kubernetes.device_plugin.unit_ids import RESOURCE, is_ours
from pgpu.kubernetes.node_pods import Pod, PodResources
from pgpu.ledger import ClaimRecord


class Mode(StrEnum):
    """How the kubelet asks for slices."""

    DRA = "dra"
    DEVICE_PLUGIN = "device-plugin"


def enter_mode(mode: Mode, claims: Claims, pods: PodResources) -> None:
    """Free what is surely nobody's of the other mode, or refuse to begin.

    Raises:
        NodeError: Slices of the other mode are held, and may be in use.
    """
    others = [each for each in claims.records().values() if is_ours(each.claim) == (mode is Mode.DRA)]
    if not others:
        return
    if mode is Mode.DEVICE_PLUGIN:
        raise _refused(mode, others, "the kubelet gives them back when their pods are gone")
    told = pods.pods()
    if not told:
        raise _refused(mode, others, "the kubelet does not know its pods yet")
    having = [f"{pod.namespace}/{pod.name}" for pod in told if _has_units(pod)]
    if having:
        raise _refused(mode, others, f"pods have them: {', '.join(having)}")
    _free_unused(mode, claims, others)


def _free_unused(mode: Mode, claims: Claims, others: Sequence[ClaimRecord]) -> None:
    uses = claims.uses()
    busy = [each for each in others for use in uses.get(each.claim.uid, ()) if use.processes or use.used_bytes]
    if busy:
        raise _refused(mode, busy, "processes use them")
    for each in others:
        claims.free(each.claim.uid)


def _has_units(pod: Pod) -> bool:
    return any(units.resource == RESOURCE and units.ids for container in pod.containers for units in container.units)


def _refused(mode: Mode, others: Sequence[ClaimRecord], why: str) -> NodeError:
    other = Mode.DRA if mode is Mode.DEVICE_PLUGIN else Mode.DEVICE_PLUGIN
    return NodeError(
        f"this node still has {len(others)} slices of --mode {other}, so --mode {mode} cannot begin: {why}",
        hint=f"start it with --mode {other} again, and drain the node before its mode is changed",
    )
