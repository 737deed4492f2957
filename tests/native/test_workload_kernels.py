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


def entries(ptx: str) -> dict[str, list[str]]:
    """Each entry with the types of its parameters."""
    return {name: re.findall(r"\.param \.(\w+)", parameters) for name, parameters in ENTRY.findall(ptx)}


def committed() -> dict[str, list[str]]:
    return entries((ROOM / "kernels.ptx").read_text())


def test_every_kernel_of_the_source_is_an_entry_with_as_many_parameters() -> None:
    source = (ROOM / "kernels.cu").read_text()
    counts = {name: parameters.count(",") + 1 for name, parameters in SOURCE_KERNEL.findall(source)}

    assert counts == {name: len(parameters) for name, parameters in committed().items()}
    assert len(counts) == 5


def test_the_ptx_asks_for_no_more_than_maxwell_and_cuda_9() -> None:
    ptx = (ROOM / "kernels.ptx").read_text()

    assert "\n.version 6.0\n" in ptx
    assert "\n.target sm_50\n" in ptx


def test_the_simulated_drivers_notes_are_those_of_the_source() -> None:
    notes = [
        [line for line in (ROOM / name).read_text().splitlines() if line.startswith("// pgpu.cost ")]
        for name in ("kernels.cu", "kernels.ptx")
    ]

    assert notes[0] == notes[1] != []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_fresh_compilation_has_the_same_entries(tmp_path: Path) -> None:
    subprocess.run(["nvcc", "--ptx", "-o", tmp_path / "fresh.ptx", ROOM / "kernels.cu"], check=True, cwd=tmp_path)

    assert entries((tmp_path / "fresh.ptx").read_text()) == committed()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="ptxas is not installed")
def test_the_assembler_accepts_the_committed_ptx(tmp_path: Path) -> None:
    architectures = subprocess.run(["nvcc", "--list-gpu-code"], check=True, capture_output=True, text=True).stdout
    newest_and_oldest = {architectures.split()[0], architectures.split()[-1]}
    for architecture in newest_and_oldest:
        command = ["nvcc", "--cubin", f"--gpu-architecture={architecture}", "-o", str(tmp_path / "k.cubin")]
        subprocess.run([*command, str(ROOM / "kernels.ptx")], check=True, cwd=tmp_path)
