"""Which replica gets a call: one of its version, or one that stands in until the first of that is hot.

It refuses to give it the call, and to have leases asked for.
"""

from collections.abc import Collection, Mapping, Sequence

from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.router.version_load import VersionLoad


def able_replicas(
    load: VersionLoad, loads: Collection[VersionLoad], percents: Mapping[int, int], *, is_exact: bool
) -> Sequence[ReplicaConnection]:
    """Return the hot replicas that may serve a version.

    Args:
        load: The version's.
        loads: Of all versions.
        percents: Shares of the traffic, by version.
        is_exact: Whether no other version stands in.
    """
    if load.hot or is_exact or (load.has_been_ready and not _is_replaced(load, loads, percents)):
        return load.hot
    return [link for other in loads for link in other.hot]


def freest_replica(load: VersionLoad, hot: Sequence[ReplicaConnection]) -> ReplicaConnection | None:
    """Return the first that would run a call at once, else the one with the fewest; so the last ones idle. None: all are full."""
    best, fewest = None, load.window
    for link in hot:
        count = len(link.sent)
        if link.offered_value is not None:
            continue
        if count < load.slots:
            return link
        if count < fewest:
            best, fewest = link, count
    return best


def evictable_replica(hot: Sequence[ReplicaConnection]) -> ReplicaConnection | None:
    """Return the first that is on offer, and that nobody claims yet."""
    return next((link for link in hot if link.offered_value is not None and not link.is_claiming), None)


def _is_replaced(load: VersionLoad, loads: Collection[VersionLoad], percents: Mapping[int, int]) -> bool:
    """Whether versions that get no more traffic still serve in its stead."""
    return any(other.hot and other.number not in percents for other in loads if other is not load)
