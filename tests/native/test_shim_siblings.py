"""The processes of a slice share its limit and wait for none of them: not for a dead, a stopped or a new one."""

import fcntl
import os
import select
import signal
import struct

from tests.slice_world import GIB, MIB, SliceWorld
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement import meter


class TestAKilledProcessHoldsNobodyUp:
    """Every point inside the protocol is in test_meter_storm; here a sibling meets a corpse through CUDA."""

    def test_siblings_allocate_what_a_killed_one_had(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(600 * MIB); print('held', flush=True); sys.stdin.readline()"
        with one_gib.running(hold) as first:
            first.send_signal(signal.SIGKILL)
            first.wait()
            assert one_gib.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(600 * MIB))))") == 0

    def test_a_sibling_works_while_another_is_stopped(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(100 * MIB); print('held', flush=True); sys.stdin.readline()"
        with one_gib.running(hold) as stopped:
            stopped.send_signal(signal.SIGSTOP)
            assert one_gib.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(100 * MIB))))") == 0

    def test_memory_of_a_dead_parent_stays_counted_while_its_forked_child_lives(self, one_gib: SliceWorld) -> None:
        snippet = """
cu.begin()
cu.alloc(600 * MIB)
child = os.fork()
if child == 0:
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""
        one_gib.write_limit(context_bytes=100 * MIB)
        with one_gib.start(snippet) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            parent.kill()
            parent.wait()
            ask = "cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(300 * MIB))))"
            assert one_gib.answer(ask) == 2
            os.kill(child, signal.SIGKILL)
            _wait_until_gone(child)
        assert one_gib.answer(ask) == 0


class TestNoProcessLosesItsSlot:
    def test_the_limit_holds_for_all_after_one_of_them_was_killed(self, one_gib: SliceWorld) -> None:
        hold = "cu.begin(); cu.alloc(8 * MIB); print('held', flush=True); sys.stdin.readline()"
        one_gib.write_limit(context_bytes=10 * MIB)
        with one_gib.running(hold) as first, one_gib.running(hold), one_gib.running(hold):
            first.send_signal(signal.SIGKILL)
            first.wait()
            done, code = one_gib.answer(
                "cu.begin(); print(json.dumps(count_until_refused(lambda: cu.alloc(64 * MIB), 30)))"
            )
            assert code == 2
            assert done == (GIB - 2 * 18 * MIB - 10 * MIB) // (64 * MIB)


class TestManyProcessesStartAtOnce:
    def test_two_hundred_processes_each_get_a_slot_of_their_own(self, one_gib: SliceWorld) -> None:
        """One process forks them before CUDA; none may wait for another, so all hold at the same time."""
        one_gib.write_limit(context_bytes=MIB)
        one_gib.environment["PGPU_SIMGPU_BACKING"] = "none"
        slots = one_gib.answer(
            """
ready_read, ready_write = os.pipe()
go_read, go_write = os.pipe()
children = []
for _ in range(200):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = outcome(lambda: cu.call("cuInit", 0))
        finally:
            os.write(ready_write, bytes([code]))
            os.read(go_read, 1)
            os._exit(0)
    children.append(child)
codes = b"".join(os.read(ready_read, 1) for _ in children)
from pathlib import Path
from pgpu.enforcement import meter
held = meter.held_slots(Path(sys.argv[1]))
os.write(go_write, bytes(200))
for child in children:
    os.waitpid(child, 0)
print(json.dumps([sum(codes), len({slot.pid for slot in held if slot.is_alive})]))
""",
            str(one_gib.usage),
        )
        assert slots == [0, 200]

    def test_the_thousand_and_twenty_fifth_process_is_refused_with_one_line(self, one_gib: SliceWorld) -> None:
        """1,024 slots are taken by locks alone, as live processes would."""
        one_gib.answer("cu.begin(); print(0)")
        with one_gib.usage.open("r+b") as file:
            lock = struct.pack("@hhqqi", fcntl.F_WRLCK, 0, meter.LOCK_ALIVE, 1024, 0)
            fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, lock)
            done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert done.stderr.count("\n") == 1
        assert "its usage file has no free slot" in done.stderr


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], DEADLINE_SECONDS)[0]
    finally:
        os.close(descriptor)
