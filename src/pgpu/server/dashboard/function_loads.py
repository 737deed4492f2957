"""How the functions of a caller fare: replicas by state, and percentiles of their calls from the replicas' own histograms.

A replica counts its calls in the buckets that Prometheus scrapes; the buckets of all replicas of a function are added up. A replica that
does not answer is left out: it is starting, parked or ending.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pgpu.host.unix_http import receive, send
from pgpu.model import Replica
from pgpu.services.function_service import FunctionService

QUANTILES = (0.5, 0.95, 0.99)

_BUCKET = re.compile(rb'^pgpu_function_request_seconds_bucket\{le="([0-9.e+-]+|\+Inf)"\} ([0-9.e+]+)$', re.MULTILINE)
ANSWER_SECONDS = 0.5
ALL_SECONDS = 2.0
_MOST_ANSWER_BYTES = 1 << 20
_MOST_CALLS = float(1 << 53)
"""Counts that no replica has reached: a sum of larger ones may be infinite."""


def function_loads(
    service: FunctionService, answer_seconds: float = ANSWER_SECONDS, all_seconds: float = ALL_SECONDS
) -> list[dict[str, object]]:
    """Return name, versions, replicas and call durations of each function of a caller, by name.

    Args:
        service: Of the caller.
        answer_seconds: Time limit for the whole answer of a replica, whose code may belong to any user.
        all_seconds: Time limit for all replicas; those after it are left out.
    """
    found, deadline_seconds = [], time.monotonic() + all_seconds
    for function in service.functions():
        replicas = service.replicas(function.name)
        buckets: Counter[float] = Counter()
        for replica in replicas:
            buckets.update(_buckets_of(replica, answer_seconds, deadline_seconds))
        starts = [sum(seconds for _, seconds in start.phases) for start in service.cold_starts(function.name)]
        found.append(
            {
                "name": function.name,
                "traffic": [[share.version, share.percent] for share in function.traffic],
                "replicas": dict(Counter(replica.state.value for replica in replicas)),
                "calls": int(max(buckets.values(), default=0)),
                "seconds": [quantile(buckets, each) for each in QUANTILES],
                "cold_seconds": sorted(starts)[len(starts) // 2] if starts else None,
            }
        )
    return found


def quantile(buckets: Mapping[float, float], fraction: float) -> float | None:
    """Estimate a quantile as Prometheus does: linearly within the bucket that holds it.

    Args:
        buckets: Cumulative counts by upper bound in seconds; the largest bound is infinite.
        fraction: 0 to 1.

    Returns:
        Seconds; None without calls. In the last bucket its lower bound.
    """
    bounds: Sequence[float] = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank, lower, below = fraction * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds[:-1]:
        if buckets[bound] >= rank:
            return lower + (bound - lower) * (rank - below) / (buckets[bound] - below)
        lower, below = bound, buckets[bound]
    return lower


def _buckets_of(replica: Replica, answer_seconds: float, deadline_seconds: float) -> dict[float, float]:
    now_seconds = time.monotonic()
    until_seconds = min(now_seconds + answer_seconds, deadline_seconds)
    if now_seconds >= deadline_seconds:
        return {}
    with suppress(OSError, ValueError):
        connection = send(
            f"unix://{replica.socket_directory}/http.sock",
            "GET",
            "/metrics",
            timeout_seconds=until_seconds - now_seconds,
        )
        counts = _BUCKET.findall(receive(connection, _MOST_ANSWER_BYTES, until_seconds).body)
        return {float(bound): float(count) for bound, count in counts if float(count) < _MOST_CALLS}
    return {}
