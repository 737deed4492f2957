"""A slice's life: its limit changes while the job runs, and a full device is waited for where the job asked for that."""

from tests.slice_world import CONTEXT_BYTES, GIB, MIB, SliceWorld, a_slice

from pgpu.enforcement import limit_file

DEVICE_BYTES = 24_265 * MIB


def test_a_larger_limit_holds_at_once_and_a_smaller_one_refuses_until_use_falls_below_it(one_gib: SliceWorld) -> None:
    step = (
        "cu.begin(); print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps([outcome(lambda: cu.alloc(int(line) * MIB)), cu.memory()]), flush=True)"
    )
    with one_gib.running(step) as job:
        assert job.stdin is not None
        assert job.stdout is not None

        def ask(mebibytes: int) -> str:
            assert job.stdin is not None
            assert job.stdout is not None
            job.stdin.write(f"{mebibytes}\n")
            job.stdin.flush()
            return job.stdout.readline().strip()

        context = CONTEXT_BYTES // MIB
        assert ask(800) == f"[2, [{GIB - CONTEXT_BYTES}, {GIB}]]"
        limit_file.set_limit_bytes(one_gib.limit, one_gib.uuids[0], 2 * GIB)
        assert ask(800) == f"[0, [{2 * GIB - (800 + context) * MIB}, {2 * GIB}]]"
        limit_file.set_limit_bytes(one_gib.limit, one_gib.uuids[0], GIB // 2)
        assert ask(2) == f"[2, [0, {GIB // 2}]]"


def test_two_processes_never_hold_more_than_the_slice_together(one_gib: SliceWorld) -> None:
    take = (
        "cu.begin(); print('ready', flush=True); sys.stdin.readline()\n"
        "print(count_until_refused(lambda: cu.alloc(10 * MIB), 200)[0], flush=True); sys.stdin.readline()"
    )
    one_gib.write_limit(context_bytes=100 * MIB)
    with one_gib.running(take) as left, one_gib.running(take) as right:
        for process in (left, right):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        taken = [int(process.stdout.readline()) for process in (left, right) if process.stdout is not None]
        assert sum(taken) == (GIB - 200 * MIB) // (10 * MIB)
        assert one_gib.use().used_bytes == 200 * MIB + sum(taken) * 10 * MIB
    assert one_gib.use().peak_bytes <= GIB


def test_what_a_process_leaves_is_free_as_soon_as_it_is_gone(one_gib: SliceWorld) -> None:
    for _ in range(3):
        assert one_gib.answer("cu.begin(); cu.alloc(700 * MIB); print(json.dumps(cu.memory()[1]))") == GIB
    assert one_gib.use().used_bytes == 0


def test_memory_inside_the_slice_that_the_device_lacks_is_waited_for() -> None:
    with a_slice(4 * GIB) as world:
        world.write_limit(wait_for_memory_seconds=30)
        hog = f"cu.begin(); cu.alloc({DEVICE_BYTES - 3 * GIB}); print('full', flush=True); sys.stdin.readline()"
        with world.start(hog, is_shimmed=False) as outsider:
            assert outsider.stdout is not None
            assert outsider.stdout.readline()
            # The outsider leaves when the job has asked for what it blocks.
            with world.start("cu.begin(); print('asking', flush=True); cu.alloc(3072 * MIB); print('granted')") as job:
                assert job.stdout is not None
                assert job.stdout.readline() == "asking\n"
                outsider.kill()
                outsider.wait()
                assert job.stdout.readline() == "granted\n"


def test_it_is_refused_when_the_wait_is_over_and_the_reservation_is_given_back() -> None:
    with a_slice(4 * GIB) as world:
        world.write_limit(wait_for_memory_seconds=0.05)
        hog = f"cu.begin(); cu.alloc({DEVICE_BYTES - 3 * GIB}); print('full', flush=True); sys.stdin.readline()"
        with world.start(hog, is_shimmed=False) as outsider:
            assert outsider.stdout is not None
            assert outsider.stdout.readline()
            snippet = (
                "cu.begin(); code = outcome(lambda: cu.alloc(3072 * MIB)); print('done', flush=True); sys.stdin.read()"
            )
            with world.running(snippet):
                use = world.use()
                assert (use.used_bytes, use.refusals, use.device_refusals) == (CONTEXT_BYTES, 0, 1)
            outsider.kill()


def test_a_pool_that_keeps_its_memory_gives_it_back_before_the_job_is_refused(one_gib: SliceWorld) -> None:
    """As PyTorch's cudaMallocAsync allocator sets it: the pool's release threshold is without bound."""
    codes = one_gib.answer("""
cu.begin()
pool = cu.number("cuDeviceGetDefaultMemPool", 0)
cu.call("cuMemPoolSetAttribute", c_uint64(pool), 4, byref(c_uint64(2**64 - 1)))
cu.free_async(cu.alloc_async(600 * MIB))
cu.synchronise()
kept = cu.held()
print(json.dumps([kept, outcome(lambda: cu.alloc(600 * MIB))]))
""")
    assert codes == [CONTEXT_BYTES + 600 * MIB, 0]
