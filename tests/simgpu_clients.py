"""The C clients of simgpu/tests: their cases by name, and simulated GPUs of known size for them.

Each case runs in a process of its own, as a real client would. This module refuses to know what a case checks.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.native_clients import client_path
from tests.waiting import DEADLINE_SECONDS

from pgpu.libraries import SIMULATED_CUDA, library_path

_SOURCES = Path(__file__).parents[1] / "simgpu" / "tests"
_CASE = re.compile(r'\{"(\w+)",\s*\w+\}')

_GPU = """
[gpu]
uuid=GPU-{0}{0}{0}{0}-2222-3333-4444-555555555555
name=Simulated GPU
memory_bytes=1073741824
context_bytes=67108864
sm_count=10
compute_major={1}
compute_minor=6
"""

TOOLS = frozenset({"hold", "hold_with_a_child", "print_used", "print_visible"})
"""Cases that tests of several processes are made of."""


def cases(area: str) -> list[str]:
    """List the cases of one client, in the order of its source."""
    return [name for name in _CASE.findall((_SOURCES / f"{area}.c").read_text()) if name not in TOOLS]


def write_gpus(directory: Path, *first_bytes: str, compute_major: int = 8) -> Path:
    """Make a state directory with one GPU of 1 GiB for each first byte of a UUID, such as `11`."""
    (directory / "gpus.conf").write_text("".join(_GPU.format(byte, compute_major) for byte in first_bytes))
    return directory


def environment(state_directory: Path, added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a client needs to meet the installed driver and these GPUs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PGPU_", "LD_"))}
    other_build = os.environ.get("PGPU_NATIVE_DIR")
    library = Path(other_build) / SIMULATED_CUDA if other_build else library_path(SIMULATED_CUDA)
    return kept | {"LD_LIBRARY_PATH": str(library.parent), "PGPU_SIMGPU_DIR": str(state_directory)} | dict(added or {})


def command(area: str, case: str) -> list[str]:
    """Return the command of one case; skips where the clients were not built."""
    return [str(client_path("simgpu", f"simgpu-{area}")), case]


def run_case(area: str, case: str, state_directory: Path, added: Mapping[str, str] | None = None) -> str:
    """Run one case to its end and return what it printed; fails with what it said on stderr."""
    done = subprocess.run(
        command(area, case),
        env=environment(state_directory, added),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{case} ended with {done.returncode}\n{done.stderr}", pytrace=False)
    return done.stdout
