"""The hook list is complete: whatever CUDA's header says may allocate or free is changed by the shim, or has a reason."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.native_clients import library

from pgpu.libraries import CUDA_SHIM, SIMULATED_CUDA

_NATIVE = Path(__file__).parent.parent.parent / "native"
_ROW = re.compile(r'^CUDA_FUNCTION\((\w+), "(\w+)", (\d+), (\w+), (\w+)\)$', re.MULTILINE)
FUNCTIONS = _ROW.findall((_NATIVE / "api" / "cuda_functions.def").read_text("utf-8"))
HOOKS = set(re.findall(r"^#define PGPU_HOOKED_(\w+) ", (_NATIVE / "shim" / "hooks.h").read_text("utf-8"), re.MULTILINE))

_NODES = "a graph takes its memory when it is launched or uploaded, and is charged there"
UNHOOKED = {
    "cuCtxFromGreenCtx": "another name for a green context, which is charged",
    "cuDeviceGetGraphMemAttribute": "tells of the process's own graphs",
    "cuDeviceSetGraphMemAttribute": "resets high-water marks",
    "cuGraphAddMemAllocNode": _NODES,
    "cuGraphAddMemFreeNode": _NODES,
    "cuGraphAddNode": _NODES,
    "cuGraphAddNode_v2": _NODES,
    "cuGraphAddNode_v3": _NODES,
    "cuGraphDestroy": _NODES,
    "cuMemPoolGetAttribute": "tells of the process's own pools",
    "cuMemPoolImportFromShareableHandle": "nothing can be allocated from such a pool; each imported pointer is charged",
}


def _exports(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[2] for line in listed.stdout.splitlines()}


def test_every_function_that_counts_is_hooked_or_has_a_reason() -> None:
    counting = {symbol for symbol, _, _, _, kind in FUNCTIONS if kind in {"CHARGE", "REFUND", "QUERY"}}
    assert counting - HOOKS == set(UNHOOKED)


def test_every_hook_is_a_function_of_cuda() -> None:
    assert {symbol for symbol, *_ in FUNCTIONS} >= HOOKS


@pytest.mark.parametrize("variant", ["PTSZ", "PTDS"])
def test_a_hook_exists_for_each_default_stream_or_for_none(variant: str) -> None:
    plain = {(name, version): symbol for symbol, name, version, kind, _ in FUNCTIONS if kind == "PLAIN"}
    for symbol, name, version, kind, _ in FUNCTIONS:
        if kind == variant and (name, version) in plain:
            assert (symbol in HOOKS) == (plain[name, version] in HOOKS), symbol


def test_the_shim_exports_every_function_of_the_driver_and_nothing_else() -> None:
    assert _exports(library(CUDA_SHIM)) == {symbol for symbol, *_ in FUNCTIONS}


def test_the_shim_exports_whatever_nvidia_s_library_does() -> None:
    """A program that is linked against a name, or that takes it for mandatory, does not run without it."""
    real = set((_NATIVE / "api" / "libcuda_exports.txt").read_text("utf-8").split("\n\n")[-1].split())
    assert len(real) > 600
    assert real - _exports(library(CUDA_SHIM)) == set()


def test_the_shim_exports_whatever_the_simulated_driver_does() -> None:
    assert _exports(library(CUDA_SHIM)) >= _exports(library(SIMULATED_CUDA))


_NARROW = "CUDA's first API, whose addresses have 32 bits and which no program of 64 bits links"
UNGATED: dict[str, str] = {}
"""By name, of all versions and variants."""


def test_every_function_that_launches_or_copies_passes_the_gate_or_has_a_reason() -> None:
    using = [(symbol, name, int(version)) for symbol, name, version, _, kind in FUNCTIONS if kind in {"LAUNCH", "COPY"}]
    missing = {symbol for symbol, name, _ in using if symbol not in HOOKS and name not in UNGATED}
    first = {symbol for symbol, _, version in using if version < 3020 and symbol in missing}
    assert missing == first, _NARROW
    assert not {name for name in UNGATED if name in HOOKS}


def test_every_begin_and_every_end_of_a_capture_is_counted() -> None:
    """One that is not would have the count say that nothing captures while something does."""
    capturing = {symbol for symbol, name, *_ in FUNCTIONS if re.fullmatch(r"cuStream(Begin|End)(Rec|C)apture\w*", name)}
    assert {"cuStreamBeginRecaptureToGraph", "cuStreamEndCapture"} < capturing
    assert capturing - HOOKS == set()
