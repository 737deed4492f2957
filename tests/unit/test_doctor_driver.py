"""What the doctor says of a driver that is newer than this pgpu."""

import re
from pathlib import Path

import pytest

from pgpu.app.machine_checks import cuda_version_findings
from pgpu.libraries import CUDA_SHIM_VERSION
from pgpu.model.finding import Result

_TABLE = Path(__file__).parents[2] / "native" / "api" / "cuda_functions.def"


def test_a_driver_that_is_newer_than_the_shim_is_a_warning() -> None:
    [finding] = cuda_version_findings(CUDA_SHIM_VERSION + 950)
    assert finding.result is Result.WARNING
    assert "serves CUDA 14.0, and this pgpu knows its functions up to 13.5" in finding.finding


@pytest.mark.parametrize("cuda_version", [None, 11040, CUDA_SHIM_VERSION])
def test_no_driver_and_one_that_the_shim_knows_are_none(cuda_version: int | None) -> None:
    assert list(cuda_version_findings(cuda_version)) == []


def test_the_shim_knows_what_its_table_was_written_from() -> None:
    found = re.search(r"Facts of the CUDA (\d+)\.(\d+) headers", _TABLE.read_text("utf-8"))
    assert found is not None
    assert int(found[1]) * 1000 + int(found[2]) * 10 == CUDA_SHIM_VERSION
