"""What a traced job's shim writes down of what it does on the GPU, whatever becomes of the job."""

import os
import struct
from pathlib import Path

import pytest
from tests.slice_world import CONTEXT_BYTES, MIB, SliceWorld

from pgpu.enforcement import limit_file, trace
from pgpu.enforcement.trace import Direction, Log, Memory, RecordKind, TraceRecord
from pgpu.profiling.measurement import Measurement, summarise_log
from pgpu.structs import replace

KERNEL_NS = 20_000_000
TOLERANCE_NS = 200_000
"""Of a duration between two events of the simulated driver, whose clock is the host's."""

PTX = f"""
// pgpu.cost slow fixed_ns={KERNEL_NS}
// pgpu.cost quick fixed_ns=20000
.version 7.0
.target sm_50
.address_size 64
.visible .entry slow() {{ ret; }}
.visible .entry quick() {{ ret; }}
"""

PRELUDE = f"""
PTX = {PTX.encode()!r}
cu.begin()
module = cu.number("cuModuleLoadData", c_char_p(PTX))
def function(name):
    return cu.number("cuModuleGetFunction", c_uint64(module), c_char_p(name))
def launch(handle, grid=1, stream=0, block=64):
    cu.call("cuLaunchKernel", c_uint64(handle), grid, 1, 1, block, 1, 1, 0, c_uint64(stream), None, None)
slow, quick = function(b"slow"), function(b"quick")
"""


def traced(world: SliceWorld, *, capacity: int | None = None, carve_out_percent: int | None = None) -> SliceWorld:
    """Make the world's slice one that is traced."""
    limit = limit_file.read_limit(world.limit)
    world.limit.unlink()
    limit_file.write_limit(world.limit, replace(limit, flags=limit_file.TRACES, carve_out_percent=carve_out_percent))
    trace.prepare(world.usage)
    if capacity is not None:
        write_header(world.usage, capacity=capacity)
    return world


def write_header(usage: Path, *, magic: int = trace.MAGIC, capacity: int = trace.DEFAULT_RECORDS) -> None:
    descriptor = os.open(usage, os.O_RDWR)
    os.pwrite(descriptor, trace.HEADER.pack(magic, trace.ABI, capacity, 0, 0, 0, 0, 0, 0), trace.OFFSET)
    os.close(descriptor)


def log_of(world: SliceWorld) -> Log:
    saved = trace.save(world.usage)
    assert saved is not None
    return trace.read(saved)


def of_kind(log: Log, kind: RecordKind) -> list[TraceRecord]:
    return [record for record in log.records if record.kind is kind]


def measured(world: SliceWorld, snippet: str) -> Measurement:
    done = world.run(PRELUDE + snippet)
    assert done.returncode == 0, done.stderr
    return summarise_log(log_of(world))


class TestKernels:
    def test_durations_are_what_the_kernels_took(self, one_gib: SliceWorld) -> None:
        found = measured(traced(one_gib), "for _ in range(5): launch(slow, grid=3)\ncu.synchronise()")
        [use] = found.kernels
        assert (use.name, use.grid, use.block, use.launches) == ("slow", (3, 1, 1), (64, 1, 1), 5)
        assert use.total_ns == pytest.approx(5 * KERNEL_NS, abs=5 * TOLERANCE_NS)
        assert found.busy_fraction > 0.5
        assert found.sm_count == 82
        assert found.log.unmeasured == 0
        starts = [record.start_ns for record in of_kind(found.log, RecordKind.KERNEL)]
        assert starts == sorted(start for start in starts if start is not None)

    def test_each_shape_of_a_kernel_counts_for_itself(self, one_gib: SliceWorld) -> None:
        found = measured(traced(one_gib), "for grid in (1, 2, 2): launch(quick, grid)\ncu.synchronise()")
        assert sorted((use.grid[0], use.launches) for use in found.kernels) == [(1, 1), (2, 2)]
        assert all(shape.blocks_per_sm > 0 for shape in found.log.shapes if shape is not None)

    def test_kernels_of_two_streams_are_told_apart(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            "streams = [cu.stream(), cu.stream()]\nfor s in streams: launch(slow, stream=s)\n"
            "for s in streams: cu.synchronise(s)",
        )
        assert len({record.stream for record in of_kind(found.log, RecordKind.KERNEL)}) == 2
        assert found.kernels[0].launches == 2

    def test_a_program_far_ahead_of_its_gpu_is_not_waited_for_and_told_what_was_not_measured(
        self, one_gib: SliceWorld
    ) -> None:
        found = measured(traced(one_gib), "for _ in range(9000): launch(quick)\ncu.synchronise()")
        [shape] = [each for each in found.log.shapes if each is not None]
        assert shape.launches == 9000
        assert 4000 < shape.measured <= 9000
        assert shape.measured + found.log.unmeasured == 9000

    def test_threads_that_begin_and_launch_together_are_all_written_down(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            """
import threading
def work():
    cu.begin()
    stream = cu.stream()
    for _ in range(200): launch(quick, stream=stream)
    cu.synchronise(stream)
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        )
        assert found.kernels[0].launches == 1200
        assert found.process_count == 1
        assert len(of_kind(found.log, RecordKind.KERNEL)) == 1200

    def test_a_launch_that_the_driver_refuses_is_none(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib), "print(outcome(lambda: launch(quick, block=5000)))\nlaunch(quick)\ncu.synchronise()"
        )
        assert len(of_kind(found.log, RecordKind.KERNEL)) == 1

    def test_a_carve_out_is_applied_to_every_kernel(self, one_gib: SliceWorld) -> None:
        world = traced(one_gib, carve_out_percent=100)
        told = world.answer(
            PRELUDE + 'launch(quick)\ncu.synchronise()\nprint(cu.number("cuFuncGetAttribute", 9, c_uint64(quick)))'
        )
        assert told & 0xFFFFFFFF == 100
        assert all(record.is_carved for record in of_kind(log_of(world), RecordKind.KERNEL))


class TestGraphsAndCopies:
    GRAPH = """
stream, graph = cu.stream(), c_uint64()
cu.call("cuStreamBeginCapture_v2", c_uint64(stream), 0)
for _ in range(3): launch(slow, stream=stream)
cu.call("cuStreamEndCapture", c_uint64(stream), byref(graph))
executable = cu.number("cuGraphInstantiateWithFlags", graph, c_uint64(0))
for _ in range(2): cu.call("cuGraphLaunch", c_uint64(executable), c_uint64(stream))
cu.synchronise(stream)
"""

    def test_a_graph_is_one_command_and_its_capture_is_left_alone(self, one_gib: SliceWorld) -> None:
        found = measured(traced(one_gib), self.GRAPH)
        assert of_kind(found.log, RecordKind.KERNEL) == []
        assert (found.graphs.launches, found.graphs.nodes) == (2, 6)
        assert found.graphs.total_ns == pytest.approx(6 * KERNEL_NS, abs=6 * TOLERANCE_NS)
        assert found.busy_fraction > 0.5

    def test_copies_have_directions_and_bytes(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            """
here, there = cu.alloc(8 * MIB), cu.alloc(8 * MIB)
host = create_string_buffer(4 * MIB)
cu.call("cuMemcpyHtoD_v2", c_uint64(here), host, c_size_t(4 * MIB))
cu.call("cuMemcpyDtoD_v2", c_uint64(there), c_uint64(here), c_size_t(2 * MIB))
cu.call("cuMemcpyDtoH_v2", host, c_uint64(there), c_size_t(MIB))
cu.call("cuMemsetD8_v2", c_uint64(here), 1, c_size_t(3 * MIB))
cu.call("cuCtxSynchronize")
""",
        )
        told = {use.direction: use.total_bytes for use in found.copies}
        assert told == {"HtoD": 4 * MIB, "DtoD": 2 * MIB, "DtoH": MIB, "fill": 3 * MIB}
        assert found.busy_fraction == 0
        assert {each.detail for each in of_kind(found.log, RecordKind.COPY)} <= set(Direction)


class TestMemory:
    def test_memory_is_told_by_kind_and_goes_again(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            """
linear = cu.alloc(100 * MIB)
managed = cu.number("cuMemAllocManaged", c_size_t(60 * MIB), 1)
physical = cu.create(40 * MIB)
pooled = cu.alloc_async(32 * MIB)
cu.synchronise()
cu.free(linear)
cu.free(managed)
cu.release(physical)
""",
        )
        [use] = found.gpus
        assert use.peak is not None
        assert use.peak.bytes_by_kind == {
            Memory.CONTEXT: CONTEXT_BYTES,
            Memory.LINEAR: 100 * MIB,
            Memory.MANAGED: 60 * MIB,
            Memory.PHYSICAL: 40 * MIB,
            Memory.POOL: 32 * MIB,
        }
        assert set(use.memory[-1].bytes_by_kind) == {Memory.CONTEXT, Memory.POOL}
        assert found.peak_bytes == one_gib.use().peak_bytes

    def test_what_a_context_takes_with_it_is_gone(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            """
context = cu.number("cuCtxCreate_v2", 0, 0)
cu.alloc(100 * MIB)
cu.call("cuCtxDestroy_v2", c_uint64(context))
""",
        )
        assert found.gpus[0].memory[-1].bytes_by_kind == {Memory.CONTEXT: CONTEXT_BYTES}

    def test_a_context_s_last_kernels_are_measured_before_it_goes(self, one_gib: SliceWorld) -> None:
        found = measured(traced(one_gib), 'launch(slow)\nlaunch(slow)\ncu.call("cuDevicePrimaryCtxRelease_v2", 0)\n')
        assert all(record.start_ns is not None for record in of_kind(found.log, RecordKind.KERNEL))
        assert found.gpus[0].memory[-1].total_bytes == 0


class TestWhateverBecomesOfTheJob:
    def test_kill_9_leaves_a_readable_log(self, one_gib: SliceWorld) -> None:
        endless = PRELUDE + "launch(slow)\ncu.synchronise()\nprint('ready', flush=True)\nwhile True: launch(quick)"
        with traced(one_gib).running(endless) as process:
            process.kill()
            process.wait()
            found = summarise_log(log_of(one_gib))
        assert found.kernels[0].name in {"slow", "quick"}
        [first, *_] = of_kind(found.log, RecordKind.KERNEL)
        assert first.duration_ns == pytest.approx(KERNEL_NS, abs=TOLERANCE_NS)

    def test_a_full_log_keeps_counting(self, one_gib: SliceWorld) -> None:
        found = measured(traced(one_gib, capacity=6), "for _ in range(50): launch(quick)\ncu.synchronise()")
        assert len(found.log.records) == 6
        assert found.log.dropped >= 40
        [use] = found.kernels
        assert use.launches == 50
        assert use.total_ns >= 50 * 20_000

    def test_a_second_process_of_the_job_writes_into_the_same_log(self, one_gib: SliceWorld) -> None:
        world = traced(one_gib)
        with world.running(PRELUDE + "launch(slow)\ncu.synchronise()\nprint('ready', flush=True)\ninput()"):
            found = measured(world, "launch(slow)\ncu.synchronise()")
        assert found.process_count == 2
        assert len({record.slot for record in of_kind(found.log, RecordKind.KERNEL)}) == 2
        assert found.kernels[0].launches == 2

    @pytest.mark.parametrize("capacity", [0, 1 << 31, (1 << 32) - 1])
    def test_a_header_that_lies_harms_nobody(self, one_gib: SliceWorld, capacity: int) -> None:
        found = measured(traced(one_gib, capacity=capacity), "launch(slow)\ncu.synchronise()")
        assert found.kernels[0].launches == 1

    def test_a_log_that_is_none_is_left_alone(self, one_gib: SliceWorld) -> None:
        world = traced(one_gib)
        write_header(world.usage, magic=1)
        done = world.run(PRELUDE + "launch(slow)\ncu.synchronise()")
        assert done.returncode == 0, done.stderr
        data = world.usage.read_bytes()
        assert struct.unpack_from("<Q", data, trace.OFFSET + 16) == (0,)

    def test_a_job_that_is_not_traced_writes_nothing(self, one_gib: SliceWorld) -> None:
        trace.prepare(one_gib.usage)
        done = one_gib.run(PRELUDE + "launch(slow)\ncu.synchronise()")
        assert done.returncode == 0, done.stderr
        assert log_of(one_gib).records == ()

    def test_a_forked_child_that_never_asks_for_cuda_writes_nothing(self, one_gib: SliceWorld) -> None:
        found = measured(
            traced(one_gib),
            "launch(slow)\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\nlaunch(slow)\ncu.synchronise()",
        )
        assert found.process_count == 1
        assert found.kernels[0].launches == 2
