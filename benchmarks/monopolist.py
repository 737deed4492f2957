"""How long short kernels at 50 Hz wait beside long ones that never end, with pgpu's shares and without pgpu.

There are two bounds for what the hardware's preemption allows, and both must hold: the p99 of the same pair of programs without
pgpu, measured beside; and the worst case of the simulated GPU's time slices. A part of `benchmarks.share_accuracy`, with the
same bars. Like it, it makes no statement about real GPUs.
"""

import time
from collections.abc import Mapping
from typing import Any

from tests.compute_world import ComputeWorld, a_compute_world, shared

from pgpu.enforcement.compute_word import ComputeWord

LATENCY_RATIO = 2.0
"""Of an interactive job's p99 to what the hardware's preemption allows, either way; from the project's design."""

SAMPLES, SHORT_SAMPLES = 1000, 150
"""Waits: of a thousand, ten are longer than the p99."""

_SLICE_NS = 2_000_000
"""Written into the measured GPU's gpus.conf, so that the figure does not depend on a default."""

_KERNEL_NS, _PAUSE_US = 500_000, 19_370
"""A period that is no multiple of a time slice, so that arrivals drift through it."""

_LONG_KERNEL_NS = 200_000_000
_REGISTER_BYTES = 256 << 10
"""Of a multiprocessor: they are saved and loaded at each switch, like its shared memory (docs/simulated-gpu.md)."""

_WARM_SECONDS = 2.0
_SECOND = 1_000_000_000
_MILLISECOND = 1_000_000


def measured(samples: int) -> dict[str, Any]:
    """Measure one pair after the other, and return what bars are held against."""
    with_shares = _interactive(shared(0.5), samples)
    without = _interactive(None, samples)
    allowed_ms = round(_allowed_ns() / _MILLISECOND, 3)
    return {
        "samples_asked": samples,
        "with_shares": with_shares,
        "without_pgpu": without,
        "preemption_allows_ms": allowed_ms,
        "p99_to_without_pgpu": round(with_shares["p99_ms"] / without["p99_ms"], 2),
        "p99_to_preemption": round(with_shares["p99_ms"] / allowed_ms, 2),
    }


def missed(row: Mapping[str, Any]) -> list[str]:
    """Name the bars that were missed."""
    bars = {
        "without pgpu": row["p99_to_without_pgpu"] > LATENCY_RATIO,
        "a whole time slice, a switch and its own kernel": row["p99_to_preemption"] > LATENCY_RATIO,
    }
    found = [
        f"an interactive job waits too long beside a monopolist, against {name}"
        for name, is_over in bars.items()
        if is_over
    ]
    if min(row[pair]["samples"] for pair in ("with_shares", "without_pgpu")) < row["samples_asked"]:
        found.append("too few waits beside a monopolist")
    return found


def _interactive(word: ComputeWord | None, samples: int) -> dict[str, float]:
    """Without a word, both run without pgpu: no shim is between them and the driver."""
    with a_compute_world(configuration=f"time_slice_ns={_SLICE_NS}") as world:
        monopolist, job = world.job(word), world.job(word)
        is_shimmed = word is not None
        long = (f"cost_ns={_LONG_KERNEL_NS}", "sync=50", "seconds=100000")
        with monopolist.load(*long, is_shimmed=is_shimmed):
            time.sleep(_WARM_SECONDS)  # noqa: TID251 - this is how long something is measured, not what is waited for
            short = (f"cost_ns={_KERNEL_NS}", "sync=1", f"pause_us={_PAUSE_US}", f"count={samples}", "seconds=600")
            found = job.load(*short, is_shimmed=is_shimmed).finish()
    return {
        "samples": found["launched"],
        **{f"{name}_ms": round(found[f"{name}_ns"] / _MILLISECOND, 3) for name in ("p50", "p99")},
    }


def _allowed_ns() -> float:
    """Worst case: a kernel that arrives just after a switch waits for the other's whole slice and the switch; it fits into one slice itself."""
    with a_compute_world() as world:
        return _SLICE_NS + _switch_ns(world) + _KERNEL_NS


def _switch_ns(world: ComputeWorld) -> float:
    facts = world.facts()
    state_bytes = int(facts["sm_count"]) * (_REGISTER_BYTES + int(facts["shared_bytes_per_sm"]))
    return 2 * state_bytes * _SECOND / int(facts["bandwidth_bytes_per_second"])
