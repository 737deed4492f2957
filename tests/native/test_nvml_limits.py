"""The simulated driver limits a control group's memory where NVML says so, as NVIDIA's does since r615."""

import json
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import library, preloading
from tests.nvml_world import MIB, SimulatedGpus, run_with_library
from tests.plain_slice import CONTEXT_BYTES

from pgpu.libraries import SIMULATED_NVML

LIBRARY = library(SIMULATED_NVML)
HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/devices")

FILL = """
import json, sys
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])
def fill():
    count = 0
    while driver.cuMemAlloc(64 << 20)[0] == driver.CUresult.CUDA_SUCCESS:
        count += 1
    return count
counts = [fill()]
for line in sys.stdin:
    print("full", flush=True) if line == "tell\\n" else counts.append(fill())
print(json.dumps(counts))
"""

LIMIT = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(int(sys.argv[3]))
group = sys.argv[2].encode()
try:
    if len(sys.argv) > 4:
        wanted = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=group, softLimit=int(sys.argv[4]), hardLimit=int(sys.argv[4]))
        nvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
    found = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=group)
    nvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
    print(json.dumps([found.softLimit, found.hardLimit, found.currentUsed]))
except nvml.NVMLError as error:
    print(json.dumps(str(error)))
"""

UNLIMITED = 2**64 - 1
LIMIT_BYTES = 1024 * MIB
FITTING = (LIMIT_BYTES - CONTEXT_BYTES) // (64 * MIB)


@pytest.fixture
def gpus() -> Iterator[SimulatedGpus]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-limits-", dir="/dev/shm"))
    yield SimulatedGpus(directory, "RTX 3090x2")
    shutil.rmtree(directory)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of the test's own, with one below it."""
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    for hierarchy in map(Path, HIERARCHIES):
        with suppress(OSError):
            if not (hierarchy / "cgroup.procs").exists():
                continue
            (hierarchy / name / "below").mkdir(parents=True)
            yield hierarchy / name
            (hierarchy / name / "below").rmdir()
            (hierarchy / name).rmdir()
            return
    pytest.skip("no control group can be made here (it takes root and a writable cgroup file system)")


def limit(gpus: SimulatedGpus, group: Path, *words: int) -> Any:
    done = run_with_library(LIMIT, LIBRARY, str(group), *map(str, words), environment=gpus.environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start(gpus: SimulatedGpus, group: Path | None, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a program that fills GPU 0, in a group."""
    enter = f"echo $$ >{group}/cgroup.procs && " if group else ""
    preloads = [f"{name}={words}" for name, words in preloading().items()]  # for the program alone: they break a shell
    command = ["sh", "-c", f'{enter}exec "$@"', "sh", *prefix, "env", *preloads, sys.executable, "-c", FILL]
    kept = {name: words for name, words in gpus.environment.items() if name not in preloading()}
    environment = {**kept, "LD_LIBRARY_PATH": str(LIBRARY.parent)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def counts_of(process: subprocess.Popen[str]) -> list[int]:
    standard_output, standard_error = process.communicate()
    assert process.returncode == 0, standard_error
    counts: list[int] = json.loads(standard_output.splitlines()[-1])
    return counts


def wait_until_full(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("tell\n")
    process.stdin.flush()
    assert process.stdout.readline() == "full\n"


def test_a_group_is_unlimited_until_it_is_limited_and_then_says_so(gpus: SimulatedGpus, group: Path) -> None:
    assert limit(gpus, group, 0) == [UNLIMITED, UNLIMITED, 0]
    assert limit(gpus, group, 0, LIMIT_BYTES) == [LIMIT_BYTES, LIMIT_BYTES, 0]
    assert limit(gpus, group, 1) == [UNLIMITED, UNLIMITED, 0]


@pytest.mark.parametrize("below", ["", "below"])
def test_a_process_in_a_limited_group_or_below_it_is_refused_past_the_limit(
    gpus: SimulatedGpus, group: Path, below: str
) -> None:
    limit(gpus, group, 0, LIMIT_BYTES)
    assert counts_of(start(gpus, group / below)) == [FITTING]


def test_a_process_outside_a_limited_group_is_not_limited(gpus: SimulatedGpus, group: Path) -> None:
    limit(gpus, group, 0, LIMIT_BYTES)
    assert counts_of(start(gpus, None))[0] > 300


def test_the_processes_of_a_group_share_its_limit(gpus: SimulatedGpus, group: Path) -> None:
    limit(gpus, group, 0, LIMIT_BYTES)
    first = start(gpus, group)
    wait_until_full(first)
    held = CONTEXT_BYTES + FITTING * 64 * MIB
    assert limit(gpus, group, 0) == [LIMIT_BYTES, LIMIT_BYTES, held]
    limit(gpus, group, 0, LIMIT_BYTES + CONTEXT_BYTES + 64 * MIB)
    assert counts_of(start(gpus, group / "below")) in ([1], [1 + (LIMIT_BYTES - held) // (64 * MIB)])
    assert counts_of(first) == [FITTING]
    assert limit(gpus, group, 0)[2] == 0


def test_a_limit_can_change_while_a_program_runs(gpus: SimulatedGpus, group: Path) -> None:
    limit(gpus, group, 0, LIMIT_BYTES)
    process = start(gpus, group)
    wait_until_full(process)
    limit(gpus, group, 0, 2 * LIMIT_BYTES)
    assert process.stdin is not None
    process.stdin.write("again\n")
    counts = counts_of(process)
    assert sum(counts) == (2 * LIMIT_BYTES - CONTEXT_BYTES) // (64 * MIB)


def test_a_limit_set_late_counts_what_is_held_already(gpus: SimulatedGpus, group: Path) -> None:
    limit(gpus, group, 0, UNLIMITED)
    first = start(gpus, group)
    wait_until_full(first)
    assert limit(gpus, group, 0, LIMIT_BYTES)[2] > LIMIT_BYTES
    first.kill()
    first.communicate()
    assert counts_of(start(gpus, group)) == [FITTING]


def test_a_cgroup_namespace_does_not_hide_a_process_from_its_limit(
    gpus: SimulatedGpus, group: Path, tmp_path: Path
) -> None:
    if not (group / "cgroup.controllers").exists():
        pytest.skip("needs the unified hierarchy")
    limit(gpus, group, 0, LIMIT_BYTES)
    as_container = f'mount -t cgroup2 cgroup2 {tmp_path} && grep -q ^0::/$ /proc/self/cgroup && exec "$@"'
    assert counts_of(start(gpus, group, ("unshare", "--cgroup", "--mount", "sh", "-c", as_container, "sh"))) == [
        FITTING
    ]


def test_a_group_that_does_not_exist_is_not_found(gpus: SimulatedGpus, group: Path) -> None:
    assert limit(gpus, group / "nowhere", 0, LIMIT_BYTES) == "Not Found"


def test_only_root_sets_a_limit(gpus: SimulatedGpus, group: Path) -> None:
    for path in (gpus.directory, *gpus.directory.iterdir()):
        path.chmod(0o777)
    code = LIMIT.replace(
        "nvml.nvmlInit()", "import os\nos.geteuid() or os.setresuid(1234, 1234, 1234)\nnvml.nvmlInit()"
    )
    words = (str(group), "0", str(LIMIT_BYTES))
    # The library is read before the program becomes an ordinary user, who may not be let into this checkout.
    done = run_with_library(f"import pynvml\n{code}", LIBRARY, *words, environment=gpus.environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "Insufficient Permissions"
