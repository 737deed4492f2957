"""What `optima` found out about the soonest ends of the sets; reading it needs no solver."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIMA = Path(__file__).parent.parent / "results" / "makespan-optima.json"
SEEDS = 20


def read(path: Path = OPTIMA) -> dict[str, dict[str, Any]]:
    """Return what is known: by kind and seed the seconds of the best plan, a bound, and whether the plan is proven best."""
    known: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return known


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Write all of it at once: a run may be cut off."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    part.replace(path)
