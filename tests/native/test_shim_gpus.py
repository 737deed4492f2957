"""A slice of several GPUs knows each by its UUID, and a GPU outside the lease gives nothing."""

from tests.slice_world import CONTEXT_BYTES, GIB, SliceWorld, a_slice


class TestEachGpuIsKnownByItsUuid:
    def test_virtual_memory_is_charged_to_the_device_it_is_made_on(self, two_gpus: SliceWorld) -> None:
        done, code = two_gpus.answer("""
cu.begin(0)
print(json.dumps(count_until_refused(lambda: cu.create(512 * MIB, ordinal=1), 8)))
""")
        assert (done, code) == (2, 2)
        assert two_gpus.use(0).peak_bytes == CONTEXT_BYTES
        assert two_gpus.use(1).peak_bytes == GIB

    def test_an_explicit_pool_is_charged_to_its_own_device(self, two_gpus: SliceWorld) -> None:
        done, code = two_gpus.answer("""
cu.begin(0)
pool = cu.pool(1)
print(json.dumps(count_until_refused(lambda: cu.alloc_from(pool, 512 * MIB), 8)))
""")
        assert (done, code) == (2, 2)

    def test_ordinals_renumbered_by_the_environment_keep_their_limits(self, two_gpus: SliceWorld) -> None:
        two_gpus.environment["CUDA_VISIBLE_DEVICES"] = "1"
        total, done = two_gpus.answer("""
cu.begin(0)
print(json.dumps([cu.total(0), count_until_refused(lambda: cu.alloc(512 * MIB), 8)[0]]))
""")
        assert (total, done) == (GIB, 1)
        assert two_gpus.use(0).peak_bytes == 0

    def test_a_gpu_outside_the_lease_gives_no_context_and_no_memory(self) -> None:
        with a_slice(GIB, None) as world:
            codes = world.answer("""
cu.begin(0)
attempts = (lambda: cu.use(1), lambda: cu.create(2 * MIB, ordinal=1), lambda: cu.pool(1))
print(json.dumps([outcome(attempt) for attempt in attempts]))
""")
        assert codes == [800, 800, 800]

    def test_the_default_pool_of_a_gpu_outside_the_lease_refuses_each_time_it_is_asked(self) -> None:
        with a_slice(GIB, None) as world:
            codes = world.answer("""
cu.begin(0)
pool = cu.number("cuDeviceGetDefaultMemPool", 1)
print(json.dumps([outcome(lambda: cu.alloc_from(pool, 512 * MIB)) for _ in range(3)]))
""")
        assert codes == [800, 800, 800]
