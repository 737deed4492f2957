"""A cold start taken apart: what each phase of it took. Pure.

It refuses to guess: a phase whose ends are not known is left out.
"""

import time

from pgpu.functions.gateway.calling.link import Link
from pgpu.functions.gateway.desk import Standing
from pgpu.model import ColdStart


def cold_start(function: str, link: Link, standing: Standing | None, answered_seconds: float) -> ColdStart:
    """Describe the start of a replica whose first call was just answered."""
    epoch = time.time() - time.monotonic()
    started = standing.started_at_seconds if standing is not None else None
    ends: list[tuple[str, float | None]] = [
        ("grant", None if started is None else started - epoch),
        ("runtime", link.begun_seconds or None),
        ("imports", link.hot_since_seconds - link.load_seconds),
        ("constructor", link.hot_since_seconds),
        ("first_call", answered_seconds),
    ]
    phases, last = [], link.asked_seconds
    for name, end in ends:
        if end is not None:
            phases.append((name, max(0.0, end - last)))
            last = max(last, end)
    return ColdStart(function, link.version, link.job_id, epoch + link.asked_seconds, tuple(phases))
