"""P3's table by `pgpu advise` itself: from stored profiles of each program alone, on the GPUs that P3 had."""

import json
from pathlib import Path

import pytest
from tests.unit.conftest import Run
from tests.unit.test_cli import validate

from pgpu.lab.p3_sharing_modes import P3_TABLE

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
STORED = [RESULTS / f"p3-mps-{gpu}" / "p3-profiles" for gpu in ("gtx-980-ti", "v100")]


@pytest.mark.parametrize("stored", STORED, ids=[each.parent.name for each in STORED])
def test_the_verb_names_p3s_winner_in_each_of_its_eight_cells(
    run: Run, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {}
    for size in (5_120, 10_240, 20_480, 40_960):
        for neighbour in ("CS", "CI"):
            files = [str(stored / f"{kind}-{size}.json") for kind in ("CS", neighbour)]
            assert run("advise", "--json", *files) == 0
            named[size, neighbour] = validate("advice", capsys.readouterr().out)["faster_mode"]
    # Only now is P3's table looked at.
    winners = {(cell.size, cell.neighbour): "mps" if cell.mps_wins else "time-slice" for cell in P3_TABLE}
    assert named == winners


def test_profiles_are_stored_of_both_of_p3s_gpus_and_tell_of_one_program_each() -> None:
    for folder, name in zip(STORED, ("GTX 980 Ti", "V100"), strict=True):
        for path in (folder / f"{kind}-{size}.json" for kind in ("CS", "CI") for size in (5_120, 40_960)):
            assert name in json.loads(path.read_text("utf-8"))["profile"]["gpu_name"]
