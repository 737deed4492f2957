"""The workloads' PTX is what its source says, and every GPU from Maxwell on can load it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import pgpu.workloads

ROOM = Path(pgpu.workloads.__file__).parent
ENTRY = re.compile(r"\.visible \.entry (\w+)\(([^)]*)\)")
SOURCE_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')

SOURCES = sorted(ROOM.rglob("*.cu"))
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def entries(ptx: str) -> dict[str, list[str]]:
    """Each entry with the types of its parameters."""
    return {name: re.findall(r"\.param \.(\w+)", parameters) for name, parameters in ENTRY.findall(ptx)}


def committed(source: Path) -> dict[str, list[str]]:
    return entries(source.with_suffix(".ptx").read_text())


def notes_of(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("// pgpu.cost ")]


@each_source
def test_every_kernel_of_the_source_is_an_entry_with_as_many_parameters(source: Path) -> None:
    counts = {name: parameters.count(",") + 1 for name, parameters in SOURCE_KERNEL.findall(source.read_text())}

    assert counts == {name: len(parameters) for name, parameters in committed(source).items()}
    assert len(counts) > 0


@each_source
def test_the_ptx_asks_for_no_more_than_maxwell_and_cuda_9(source: Path) -> None:
    ptx = source.with_suffix(".ptx").read_text()

    assert "\n.version 6.0\n" in ptx
    assert "\n.target sm_50\n" in ptx


@each_source
def test_the_simulated_drivers_notes_are_those_of_the_source(source: Path) -> None:
    assert notes_of(source) == notes_of(source.with_suffix(".ptx")) != []


@each_source
def test_every_kernel_of_a_program_says_what_it_costs(source: Path) -> None:
    named = {line.split()[2] for line in notes_of(source)}

    assert named >= set(committed(source)) or "*" in named


@each_source
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_fresh_compilation_has_the_same_entries(source: Path, tmp_path: Path) -> None:
    subprocess.run(["nvcc", "--ptx", "-o", tmp_path / "fresh.ptx", source], check=True, cwd=tmp_path)

    assert entries((tmp_path / "fresh.ptx").read_text()) == committed(source)


@each_source
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="ptxas is not installed")
def test_the_assembler_accepts_the_committed_ptx(source: Path, tmp_path: Path) -> None:
    architectures = subprocess.run(["nvcc", "--list-gpu-code"], check=True, capture_output=True, text=True).stdout
    newest_and_oldest = {architectures.split()[0], architectures.split()[-1]}
    for architecture in newest_and_oldest:
        command = ["nvcc", "--cubin", f"--gpu-architecture={architecture}", "-o", str(tmp_path / "k.cubin")]
        subprocess.run([*command, str(source.with_suffix(".ptx"))], check=True, cwd=tmp_path)
