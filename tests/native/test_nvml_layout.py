"""Our own declarations of NVML's types, and the tables of its facts, against NVIDIA's header where it is installed."""

import subprocess
from pathlib import Path

import pynvml
import pytest
from tests.native_clients import client_path
from tools import generate_api

LAYOUT = Path(__file__).parents[2] / "native" / "tests" / "nvml" / "layout.c"


@pytest.fixture
def header() -> Path:
    found = generate_api.nvml_header()
    if found is None:
        pytest.skip("nvml.h is not installed (pip install --group generate)")
    return found


def test_our_declarations_have_the_sizes_and_offsets_of_the_header(header: Path, tmp_path: Path) -> None:
    program = tmp_path / "layout"
    command = ("gcc", "-DPGPU_NVML_HEADER", f"-I{header.parent}", str(LAYOUT), "-o", str(program))
    subprocess.run(command, check=True)
    theirs, ours = (
        subprocess.run([path], capture_output=True, text=True, check=True).stdout
        for path in (program, client_path("nvml", "nvml-layout"))
    )
    assert ours.splitlines() == theirs.splitlines()
    assert len(theirs.splitlines()) > 100


def test_the_tables_of_nvml_are_what_the_generator_writes(header: Path) -> None:
    tables = generate_api.generated_nvml(header, generate_api.nvml_binding())
    stale = [path.name for path, text in tables.items() if path.read_text() != text]
    assert stale == []


def test_memory_limits_have_the_layout_of_nvidias_binding() -> None:
    setting, getting = pynvml.c_nvmlSetMemoryLimits_v1_t, pynvml.c_nvmlGetMemoryLimits_v1_t
    assert [name for name, _ in setting._fields_] == ["nameSpace", "softLimit", "hardLimit"]
    assert [name for name, _ in getting._fields_] == ["nameSpace", "softLimit", "hardLimit", "currentUsed"]
