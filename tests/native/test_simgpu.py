"""The simulated CUDA driver as its clients meet it: every area's cases, then what takes several processes."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tests.simgpu_clients import TOOLS, cases, command, environment, run_case, write_gpus

AREAS = (
    "checkpoints",
    "deaths",
    "devices",
    "memory",
    "managed",
    "neighbours",
    "pools",
    "streams",
    "modules",
    "graphs",
    "graph_nodes",
    "sharing",
)
NEWER_AREAS = ("fabric",)
"""What only GPUs of compute capability 9 and later have."""


@pytest.fixture
def gpus() -> Iterator[Path]:
    # OFD locks that outlive their descriptor need a tmpfs.
    with tempfile.TemporaryDirectory(prefix="simgpu-", dir="/dev/shm") as directory:
        yield write_gpus(Path(directory), "11", "22")


@pytest.mark.parametrize(("area", "case"), [(area, case) for area in AREAS for case in cases(area)])
def test_the_driver_does_what_a_client_expects(area: str, case: str, gpus: Path) -> None:
    run_case(area, case, gpus)


@pytest.mark.parametrize(("area", "case"), [(area, case) for area in NEWER_AREAS for case in cases(area)])
def test_a_newer_gpu_does_what_a_client_expects(area: str, case: str, gpus: Path) -> None:
    run_case(area, case, write_gpus(gpus, "11", "22", compute_major=9))


def test_every_area_has_cases() -> None:
    assert all(cases(area) for area in (*AREAS, *NEWER_AREAS))


def test_every_tool_is_a_case_of_a_client() -> None:
    source = Path(__file__).parents[2] / "simgpu" / "tests" / "devices.c"
    assert set(re.findall(r"static void (\w+)\(void\)", source.read_text())) >= TOOLS


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("0", "11"),
        ("1", "22"),
        ("1,0", "22 11"),
        ("1,7,0", "22"),
        ("-1", "error 100"),
        ("", "error 100"),
        ("banana", "error 100"),
        ("0,0", "error 100"),
        ("GPU-2", "22"),
        ("GPU-22222222-2222-3333-4444-555555555555", "22"),
        ("GPU-3", "error 100"),
        ("GPU-", "error 100"),
        (" 1 , GPU-11", "22 11"),
    ],
)
def test_cuda_visible_devices_selects_and_orders(visible: str, seen: str, gpus: Path) -> None:
    assert run_case("devices", "print_visible", gpus, {"CUDA_VISIBLE_DEVICES": visible}).strip() == seen


def test_without_the_variable_every_device_is_visible(gpus: Path) -> None:
    assert run_case("devices", "print_visible", gpus).split() == ["11", "22"]


@pytest.mark.parametrize("text", ["", "[gpu]\nname=x\n", "[gpu]\nuuid=nonsense\n", "no pair at all\n"])
def test_a_garbled_configuration_means_no_device_and_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.conf").write_text(text)
    done = subprocess.run(
        command("devices", "print_visible"), env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.stdout == "error 100"
    assert len(done.stderr.splitlines()) == 1
    assert "gpus.conf" in done.stderr


@pytest.fixture
def holder(gpus: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command("devices", request.param), env=environment(gpus), stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("holder", ["hold"], indirect=True)
def test_processes_share_a_device_and_the_dead_give_back(holder: subprocess.Popen[str], gpus: Path) -> None:
    assert _first_line(holder) == "holding"
    assert run_case("devices", "print_used", gpus) == "164"
    holder.kill()
    holder.wait()
    assert run_case("devices", "print_used", gpus) == "0"


@pytest.mark.parametrize("holder", ["hold_with_a_child"], indirect=True)
def test_memory_stays_while_a_forked_child_of_the_dead_lives(holder: subprocess.Popen[str], gpus: Path) -> None:
    child = int(_first_line(holder).removeprefix("child "))
    child_descriptor = os.pidfd_open(child)
    holder.kill()
    holder.wait()
    assert run_case("devices", "print_used", gpus) == "164"
    signal.pidfd_send_signal(child_descriptor, signal.SIGKILL)
    _wait_until_ended(child_descriptor)
    assert run_case("devices", "print_used", gpus) == "0"


def _wait_until_ended(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)  # a pidfd is readable once its process has ended
    assert poller.poll(30_000)
    os.close(descriptor)


def test_the_driver_exports_every_function_of_the_table(gpus: Path) -> None:
    wanted = _functions()
    library = environment(gpus)["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in listed.splitlines()}
    assert len(wanted) > 600
    assert exported == wanted


def _functions() -> set[str]:
    table = Path(__file__).parents[2] / "native" / "api" / "cuda_functions.def"
    return set(re.findall(r"^CUDA_FUNCTION\((\w+)", table.read_text(), re.MULTILINE))


def _unsupported(gpus: Path) -> set[str]:
    library = environment(gpus)["LD_LIBRARY_PATH"] + "/libcuda.so.1"
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.split()[-2] in {"W", "V"}}


def test_what_is_not_supported_stands_in_the_readme_with_its_reason(gpus: Path) -> None:
    readme = (Path(__file__).parents[2] / "simgpu" / "README.md").read_text()
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| ") and "`cu" in line.split("|")[1]]
    patterns = {pattern for row in rows for pattern in re.findall(r"`(cu[A-Z][\w*]+)`", row)}
    functions, unsupported = _functions(), _unsupported(gpus)
    old = {name for name in unsupported if f"{name}_v2" in functions}
    unlisted = {name for name in unsupported - old if not any(fnmatchcase(name, pattern) for pattern in patterns)}
    assert unlisted == set()
    assert {pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in unsupported)} == set()


_NULL_CALLS = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
context = ctypes.c_void_p()
assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
for name in sys.stdin.read().split():
    print(name, flush=True)
    driver.cuCtxSetCurrent(context)
    getattr(driver, name)(*[ctypes.c_void_p(0)] * 14)
print("all")
"""


def test_no_function_crashes_when_it_gets_nothing(gpus: Path) -> None:
    preload = {"LD_PRELOAD": os.environ.get("PGPU_TEST_PRELOAD", "")}
    done = subprocess.run(
        [sys.executable, "-c", _NULL_CALLS],
        input="\n".join(sorted(_functions())),
        env=environment(gpus, preload),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1] == "all", done.stderr


def test_cuda_bindings_run_on_it(gpus: Path) -> None:
    script = (
        "from cuda.bindings import driver as d\n"
        "assert d.cuInit(0)[0] == 0\n"
        "context = d.cuDevicePrimaryCtxRetain(0)[1]\n"
        "assert d.cuCtxSetCurrent(context)[0] == 0\n"
        "address = d.cuMemAlloc(1 << 20)[1]\n"
        "assert d.cuMemcpyHtoD(address, b'bytes', 5)[0] == 0\n"
        "back = bytearray(5)\n"
        "assert d.cuMemcpyDtoH(back, address, 5)[0] == 0\n"
        "assert back == b'bytes', back\n"
        "assert d.cuMemAlloc(1 << 40)[0] == d.CUresult.CUDA_ERROR_OUT_OF_MEMORY\n"
    )
    # A build with sanitizers needs their run-time library in a Python that was built without them.
    preload = {"LD_PRELOAD": os.environ.get("PGPU_TEST_PRELOAD", "")}
    subprocess.run([sys.executable, "-c", script], env=environment(gpus, preload), check=True)
