"""Moving a process to the host and back: the simulated driver and, where there is one, a GPU's own driver do the same."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import library
from tests.simgpu_clients import environment, write_gpus

from pgpu.enforcement.checkpoints import CheckpointError, Checkpoints, NoRoomError, ProcessState, StillWorkingError
from pgpu.enforcement.driver_library import find_driver
from pgpu.libraries import CHECKPOINT, SIMULATED_CUDA, library_path

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
PATIENCE_SECONDS = 10.0
PROGRAM = """
import json, sys
from ctypes import byref, c_char_p, c_ubyte, c_uint64
from tests.cuda_session import *
cu, PTX = Session(), b".version 6.0\\n.target sm_50\\n.address_size 64\\n// pgpu.cost k fixed_ns=1000000000\\n.visible .entry k() { ret; }\\n"
def fill(pointer, value):
    cu.call("cuMemsetD8_v2", c_uint64(pointer), value, c_size_t(4096))
def read(pointer):
    seen = c_ubyte()
    cu.call("cuMemcpyDtoH_v2", byref(seen), c_uint64(pointer), c_size_t(1))
    return seen.value
def launch():
    kernel = cu.number("cuModuleGetFunction", c_uint64(cu.number("cuModuleLoadData", c_char_p(PTX))), c_char_p(b"k"))
    cu.call("cuLaunchKernel", c_uint64(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


@dataclass
class Program:
    """One CUDA program, which says what it is asked."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        self.say(expression)
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Driver:
    """One driver and the programs that use it."""

    checkpoints: Checkpoints
    variables: dict[str, str]
    stack: ExitStack = field(default_factory=ExitStack)

    def program(self, *, has_context: bool = True) -> Program:
        made = Program(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=self.variables,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.stack.callback(made.end)
        assert made.ask("bool(cu.begin())" if has_context else "True")
        return made


def _simulated(directory: Path) -> Driver:
    return Driver(Checkpoints(lambda: library(SIMULATED_CUDA), write_gpus(directory, "11")), environment(directory))


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory:
        if request.param == "simulated":
            made = _simulated(Path(directory))
        else:
            made = Driver(Checkpoints(lambda: find_driver().cuda), dict(os.environ))
        with made.stack:
            yield made


@pytest.fixture
def simulated() -> Iterator[Driver]:
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory:
        made = _simulated(Path(directory))
        with made.stack:
            yield made


def test_what_a_process_holds_goes_and_comes_back_at_the_same_address(driver: Driver) -> None:
    assert driver.checkpoints.are_offered()
    leaving, staying = driver.program(), driver.program()
    pointer = leaving.ask(f"cu.alloc({256 * MIB})")
    leaving.ask(f"fill({pointer}, 7)")
    before = staying.ask("cu.memory()[0]")
    driver.checkpoints.leave(leaving.pid, PATIENCE_SECONDS)
    assert driver.checkpoints.is_away(leaving.pid)
    assert staying.ask("cu.memory()[0]") >= before + 256 * MIB
    leaving.say(f"read({pointer})")
    driver.checkpoints.come_back(leaving.pid)
    assert json.loads(leaving.process.stdout.readline()) == 7  # type: ignore[union-attr]
    assert driver.checkpoints.state(leaving.pid) is ProcessState.RUNNING


def test_whoever_comes_after_a_crash_may_take_every_step_again(driver: Driver) -> None:
    program = driver.program()
    for _ in range(2):
        driver.checkpoints.leave(program.pid, PATIENCE_SECONDS)
        assert driver.checkpoints.is_away(program.pid)
    for _ in range(2):
        driver.checkpoints.come_back(program.pid)
        assert not driver.checkpoints.is_away(program.pid)


def test_a_program_without_cuda_and_one_that_has_ended_have_nothing_to_move(driver: Driver) -> None:
    idle, ended = driver.program(has_context=False), driver.program()
    driver.checkpoints.leave(ended.pid, PATIENCE_SECONDS)
    ended.end()
    for pid in (idle.pid, ended.pid):
        assert driver.checkpoints.state(pid) is None
        driver.checkpoints.leave(pid, PATIENCE_SECONDS)
        driver.checkpoints.come_back(pid)


def test_work_that_takes_longer_than_the_patience_goes_on(simulated: Driver) -> None:
    program = simulated.program()
    program.ask("launch()")
    with pytest.raises(StillWorkingError):
        simulated.checkpoints.leave(program.pid, 0.01)
    assert simulated.checkpoints.state(program.pid) is ProcessState.RUNNING
    simulated.checkpoints.leave(program.pid, PATIENCE_SECONDS)


def test_who_finds_no_room_stays_on_the_host(simulated: Driver) -> None:
    leaving, staying = simulated.program(), simulated.program()
    leaving.ask(f"cu.alloc({512 * MIB})")
    simulated.checkpoints.leave(leaving.pid, PATIENCE_SECONDS)
    pointer = staying.ask(f"cu.alloc({768 * MIB})")
    with pytest.raises(NoRoomError):
        simulated.checkpoints.come_back(leaving.pid)
    assert simulated.checkpoints.is_away(leaving.pid)
    staying.ask(f"cu.free({pointer})")
    simulated.checkpoints.come_back(leaving.pid)


def test_managed_memory_cannot_leave_and_its_process_can_go_on(simulated: Driver) -> None:
    program = simulated.program()
    program.ask("cu.number('cuMemAllocManaged', c_size_t(4096), 1)")
    with pytest.raises(CheckpointError, match="managed memory"):
        simulated.checkpoints.leave(program.pid, PATIENCE_SECONDS)
    simulated.checkpoints.come_back(program.pid)
    assert program.ask("cu.memory()[0]") > 0


def test_an_older_driver_offers_nothing(tmp_path: Path) -> None:
    gpus = write_gpus(tmp_path, "11") / "gpus.conf"
    gpus.write_text("cuda_version=12040\n" + gpus.read_text())
    assert not Checkpoints(lambda: library(SIMULATED_CUDA), tmp_path).are_offered()


def test_checkpoints_that_would_free_no_memory_are_not_offered(simulated: Driver) -> None:
    directory = Path(simulated.variables["PGPU_SIMGPU_DIR"])
    assert not Checkpoints(lambda: library(SIMULATED_CUDA), directory, share_host_memory=lambda: True).are_offered()


def test_a_library_without_these_calls_offers_nothing(tmp_path: Path) -> None:
    assert not Checkpoints(lambda: Path("libc.so.6")).are_offered()
    assert not Checkpoints(lambda: tmp_path / "nothing").are_offered()


KILLED_ONCE = """#!/bin/sh
if [ ! -e {place}/killed-$2 ]; then touch {place}/killed-$2; {first}kill -9 $$; fi
exec {real} "$@"
"""


@pytest.mark.parametrize("does_it_before", [False, True])
def test_whoever_asks_may_be_killed_over_each_step(simulated: Driver, tmp_path: Path, *, does_it_before: bool) -> None:
    helper, real = tmp_path / "helper", library_path(CHECKPOINT)
    first = f'{real} "$@" >/dev/null; ' if does_it_before else ""
    helper.write_text(KILLED_ONCE.format(place=tmp_path, first=first, real=real))
    helper.chmod(0o755)
    directory = Path(simulated.variables["PGPU_SIMGPU_DIR"])
    checkpoints = Checkpoints(lambda: library(SIMULATED_CUDA), directory, lambda: helper)
    assert checkpoints.are_offered()
    program = simulated.program()
    checkpoints.leave(program.pid, PATIENCE_SECONDS)
    assert checkpoints.is_away(program.pid)
    checkpoints.come_back(program.pid)
    assert checkpoints.state(program.pid) is ProcessState.RUNNING
    killed = {path.name for path in tmp_path.glob("killed-*")}
    assert killed == {f"killed-{word}" for word in ("offers", "state", "lock", "checkpoint", "restore", "unlock")}
