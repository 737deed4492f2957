"""What one part of P3 hands back, and the part that could not be run.

It refuses to hide what is missing: a row that was left out has a finding that says why.
"""

from dataclasses import dataclass
from pathlib import Path

from pgpu.lab.report import Table


@dataclass(frozen=True, slots=True)
class Part:
    """One part's result."""

    table: Table
    findings: tuple[str, ...]
    files: tuple[Path, ...]
