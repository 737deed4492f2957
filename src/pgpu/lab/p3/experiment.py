"""Runs the parts of P3 that were asked for, one after the other, and puts them into one report.

It refuses to stop at a part that cannot run here: its line says why, and the others go on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgpu.errors import NodeError, PgpuError
from pgpu.lab import plots
from pgpu.lab.p3 import overhead, sharing_modes, wall
from pgpu.lab.p3.experiment_part import Part
from pgpu.lab.p3.overhead import OverheadPlan
from pgpu.lab.p3.sharing_modes import SharingPlan
from pgpu.lab.p3.wall import WallPlan
from pgpu.lab.report import Report
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


def run(stage: Testbed, plan: P3Plan, directory: Path) -> Report:
    """Run the parts, write their tables and figures, and report.

    Raises:
        NodeError: No figures can be drawn here, or no part could run.
    """
    plots.require_plotting()
    ways: dict[PartName, Callable[[], Part]] = {
        "wall": lambda: wall.run(stage, plan.wall, directory),
        "overhead": lambda: overhead.run(stage, plan.overhead, directory),
        "mps": lambda: sharing_modes.run(stage, plan.mps, directory),
    }
    done, failures = [], []
    for name in plan.parts:
        try:
            done.append(ways[name]())
        except PgpuError as exc:
            failures.append(f"{name}: left out: {exc}")
            stage.tell(failures[-1])
    if not done:
        raise NodeError("; ".join(failures))
    return _report(stage, plan, done, failures)


def _report(stage: Testbed, plan: P3Plan, parts: Sequence[Part], failures: Sequence[str]) -> Report:
    return Report(
        experiment="p3",
        device=stage.device_name,
        is_simulated=stage.is_simulated,
        runtime=stage.runtime,
        settings=plan.settings(),
        table=parts[0].table,
        findings=(*_findings(parts), *failures),
        files=tuple(file for part in parts for file in part.files),
        further=tuple(part.table for part in parts[1:]),
    )


def _findings(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        yield from part.findings
