"""What pgpu says of P3's pairs before any of them has run: a profile of each program alone, then advice for each pair.

It asks by the commands that a user has, `pgpu profile --sensitivity` and `pgpu advise`, and keeps the profiles for others to
ask with. It refuses to tell the advice anything that was measured of a pair.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.lab.job_outcome import last_line
from pgpu.lab.testbed import Testbed
from pgpu.model import SharingMode
from pgpu.units import MIB

_WORDS: Mapping[SharingMode, str] = {
    SharingMode.MPS: "MPS",
    SharingMode.TIME_SLICE: "turns",
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `pgpu advise` said of a pair."""

    winner: str
    """In which way they will be faster, by however little: `MPS` or `turns`."""

    mps_slowdown: float
    """The first program's time in the pair by its time alone, under MPS."""

    turns_slowdown: float


def profile_program(stage: Testbed, words: tuple[str, ...], memory_bytes: int, kept: Path) -> None:
    """Measure a program alone, with its sensitivity, and keep its profile in a file.

    Args:
        stage: Where it runs.
        words: Of the workload.
        memory_bytes: Of its slice.
        kept: The file.

    Raises:
        NodeError: It could not be measured.
    """
    asked = ("profile", "--sensitivity", "--runs", "1", "--json", "--memory", f"{memory_bytes // MIB}MiB", "--")
    done = _asked(stage, (*asked, *stage.workload(words)))
    if done.returncode != 0:
        raise NodeError(f"{words[0]} could not be profiled: {last_line(done.stderr)}")
    kept.write_text(done.stdout, "utf-8")


def ask_advice(stage: Testbed, profiles: Sequence[Path]) -> Prediction:
    """Ask `pgpu advise` for jobs of which nothing but profiles of each alone is known.

    Raises:
        NodeError: It could not say.
    """
    done = _asked(stage, ("advise", "--json", *map(str, profiles)))
    if done.returncode != 0:
        raise NodeError(f"pgpu advise failed: {last_line(done.stderr)}")
    said = json.loads(done.stdout)
    first = said["jobs"][0]
    winner = _WORDS[SharingMode(said["faster_mode"])]
    return Prediction(winner, float(first["mps_slowdown"]), float(first["time_slice_slowdown"]))


def _asked(stage: Testbed, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        stage.pgpu_command(tuple(words)), env=stage.pgpu_environment(), capture_output=True, text=True, check=False
    )
