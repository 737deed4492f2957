"""How fast bytes move to and from this machine's GPUs: what was calibrated, else what the link's generation and width allow.

It refuses to measure: `pgpu calibrate` does.
"""

import json
from dataclasses import asdict

from pgpu.engine.engine import Engine
from pgpu.model import Bandwidths, Gpu


def keep_bandwidths(engine: Engine, gpu: Gpu, measured: Bandwidths) -> None:
    """Keep what was measured of a GPU under its present driver, instead of what was under others."""
    engine.ledger.facts.put_for(_of(gpu), gpu.driver_version, json.dumps(asdict(measured)), 0.0)


def bandwidths_of(engine: Engine, gpu: Gpu) -> Bandwidths | None:
    """Return what was measured of a GPU under its present driver."""
    kept = engine.ledger.facts.get(_of(gpu) + gpu.driver_version)
    return None if kept is None else Bandwidths(**json.loads(kept))


def swap_bytes_per_second(engine: Engine, gpu: Gpu) -> float | None:
    """Return how fast memory moves where as much comes in as goes out; None where nobody measured it and the driver does not tell."""
    measured = bandwidths_of(engine, gpu)
    return gpu.link_bytes_per_second if measured is None else measured.swap


def _of(gpu: Gpu) -> str:
    return f"bandwidths/{gpu.uuid}/"
