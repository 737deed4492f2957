"""Runs the chosen parts of P3, one after the other, and joins them into one report.

If a part cannot run here, a finding gives the reason, and the others go on.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgpu.errors import NodeError, PgpuError
from pgpu.lab import plots
from pgpu.lab.p3 import overhead, sharing_modes, wall
from pgpu.lab.p3.overhead import OverheadPlan
from pgpu.lab.p3.sharing_modes import SharingPlan
from pgpu.lab.p3.wall import WallPlan
from pgpu.lab.report import Report, ReportPart
from pgpu.lab.testbed import Testbed

PartName = Literal["wall", "overhead", "mps"]
PARTS: tuple[PartName, ...] = ("wall", "overhead", "mps")


@dataclass(frozen=True, slots=True)
class P3Plan:
    """What to run."""

    parts: tuple[PartName, ...] = PARTS
    wall: WallPlan = field(default_factory=WallPlan)
    overhead: OverheadPlan = field(default_factory=OverheadPlan)
    mps: SharingPlan = field(default_factory=SharingPlan)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the parts that run."""
        return {name: asdict(getattr(self, name)) for name in self.parts}


def run(bed: Testbed, plan: P3Plan, directory: Path) -> Report:
    """Run the parts and write their tables and figures.

    Raises:
        NodeError: matplotlib is missing, or no part could run.
    """
    plots.require_plotting()
    ways: dict[PartName, Callable[[], ReportPart]] = {
        "wall": lambda: wall.run(bed, plan.wall, directory),
        "overhead": lambda: overhead.run(bed, plan.overhead, directory),
        "mps": lambda: sharing_modes.run(bed, plan.mps, directory),
    }
    done, failures = [], []
    for name in plan.parts:
        try:
            done.append(ways[name]())
        except PgpuError as exc:
            failures.append(f"{name}: left out: {exc}")
            bed.progress(failures[-1])
    if not done:
        raise NodeError("; ".join(failures))
    return Report(
        experiment="p3",
        device=bed.device_name,
        is_simulated=bed.is_simulated,
        runtime=bed.runtime,
        settings=plan.settings(),
        table=done[0].table,
        findings=(*(finding for part in done for finding in part.findings), *failures),
        files=tuple(file for part in done for file in part.files),
        further=tuple(part.table for part in done[1:]),
    )
