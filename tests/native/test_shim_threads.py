"""One process's threads meet in the shim: at first use, while they allocate in every way, and around a fork."""

import json
import subprocess

import pytest
from tests.cuda_session import OUT_OF_MEMORY
from tests.native_clients import client_path
from tests.slice_world import CONTEXT_BYTES, MIB, a_slice
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement import limit_file
from pgpu.enforcement.board import BOARD_BYTES
from pgpu.enforcement.compute_word import Hold


@pytest.mark.parametrize("room_blocks", [4, 1000])
def test_threads_that_begin_and_allocate_together_leave_one_context_counted(room_blocks: int) -> None:
    """With room for four blocks most are refused; every refusal must give its reservation back."""
    with a_slice(CONTEXT_BYTES + room_blocks * 2 * MIB) as world:
        done = subprocess.run(
            [str(client_path("shim", "shim-threads"))],
            env=world.environment_for(is_shimmed=True),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == CONTEXT_BYTES
        assert world.use().peak_bytes <= CONTEXT_BYTES + room_blocks * 2 * MIB


@pytest.mark.parametrize("what", ["allocate", "retain"])
def test_a_thread_that_is_cancelled_while_it_is_refused_leaves_the_others_free_to_go_on(what: str) -> None:
    """A sibling with memory makes every refusal look whether it lives, and that opens a file."""
    held_blocks = 3 if what == "allocate" else 5
    with (
        a_slice(CONTEXT_BYTES * 3) as world,
        world.running(
            f"cu.begin(); [cu.alloc(100 * MIB) for _ in range({held_blocks})]; print(1, flush=True); input()"
        ),
    ):
        done = subprocess.run(
            [str(client_path("shim", "shim-cancelled")), what],
            env=world.environment_for(is_shimmed=True),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


def test_a_fork_while_threads_allocate_leaves_a_child_that_is_refused_and_not_stuck() -> None:
    with a_slice(1024 * MIB) as world:
        codes = world.answer("""
import threading
cu.begin()
context = cu.number("cuCtxGetCurrent")
go_on = True
def churn():
    cu.call("cuCtxSetCurrent", c_uint64(context))
    while go_on:
        cu.free(cu.alloc(MIB))
threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(MIB)))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on = False
for thread in threads:
    thread.join()
print(json.dumps([codes, cu.held()]))
""")
    assert codes == [[3] * 20, CONTEXT_BYTES]


def test_who_waits_for_its_job_s_place_keeps_no_other_thread_waiting() -> None:
    """A thread that is refused waits for those that are charging a context, which one that is kept out is not."""
    asleep = ("35 ", "101 ", "115 ", "230 ")
    with a_slice(CONTEXT_BYTES, CONTEXT_BYTES // 2) as world:
        (world.directory / "time").write_bytes(bytes(BOARD_BYTES))
        limit_file.set_held(world.limit, world.uuids[0], Hold.SUSPENSION, is_held=True)
        steps = f"""
import threading
signal.alarm({DEADLINE_SECONDS})
cu.call("cuInit", 0)
retain = lambda ordinal: cu.code("cuDevicePrimaryCtxRetain", byref(c_void_p()), ordinal)
codes = []
kept_out = threading.Thread(target=lambda: codes.append(retain(0)))
kept_out.start()
while not open(f"/proc/self/task/{{kept_out.native_id}}/syscall").read().startswith({asleep}):
    pass
refused = retain(1)
print("refused", flush=True); sys.stdin.readline()
kept_out.join()
print(json.dumps([refused, *codes]), flush=True); sys.stdin.readline()
"""
        with world.running(steps) as process:
            assert world.use().used_bytes == 0
            limit_file.set_held(world.limit, world.uuids[0], Hold.SUSPENSION, is_held=False)
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == [OUT_OF_MEMORY, 0]
            assert world.use().used_bytes == CONTEXT_BYTES
