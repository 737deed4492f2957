"""The job does not own its limit: no variable lifts it, and without a sound one there is no CUDA."""

import pytest
from tests.slice_world import SliceWorld


class TestTheJobDoesNotOwnItsLimit:
    @pytest.mark.parametrize(
        "name", ["PGPU_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_DISABLE_CONTROL"]
    )
    def test_no_environment_lifts_it(self, one_gib: SliceWorld, name: str) -> None:
        one_gib.environment[name] = "16g"
        done, code = one_gib.answer(
            "cu.begin(); print(json.dumps(count_until_refused(lambda: cu.alloc(256 * MIB), 8)))"
        )
        assert (done, code) == (2, 2)

    @pytest.mark.parametrize("damage", ["missing", "empty", "garbled", "short", "newer", "no GPUs"])
    def test_without_a_sound_limit_cuda_is_refused_with_one_line(self, one_gib: SliceWorld, damage: str) -> None:
        content = bytearray(one_gib.limit.read_bytes())
        if damage == "garbled":
            content[0] ^= 0xFF
        elif damage == "newer":
            content[8] = 9
        elif damage == "no GPUs":
            content[12:16] = bytes(4)
        one_gib.limit.write_bytes(content[: {"empty": 0, "short": 2000}.get(damage, len(content))])
        if damage == "missing":
            one_gib.limit.unlink()
        done = one_gib.run(
            "print(json.dumps([cu.code('cuInit', 0), cu.code('cuInit', 0), cu.code('cuMemAlloc_v2', None, c_size_t(1))]))"
        )
        assert done.stdout.strip() == "[800, 800, 3]"
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("pgpu: CUDA is refused here: ")

    def test_a_limit_that_must_be_read_only_and_is_not_refuses_cuda(self, one_gib: SliceWorld) -> None:
        content = bytearray(one_gib.limit.read_bytes())
        content[24] = 1
        one_gib.limit.write_bytes(content)
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert "read-only" in done.stderr

    @pytest.mark.parametrize("damage", ["garbled", "newer", "missing"])
    def test_without_a_sound_usage_file_cuda_is_refused(self, one_gib: SliceWorld, damage: str) -> None:
        if damage == "missing":
            one_gib.usage.unlink()
        elif damage == "garbled":
            one_gib.usage.write_bytes(b"x" * 4096)
        else:
            one_gib.answer("cu.begin(); print(0)")
            content = bytearray(one_gib.usage.read_bytes())
            content[8] = 9
            one_gib.usage.write_bytes(content)
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert done.stderr.count("\n") == 1

    def test_a_driver_path_that_leads_back_to_the_shim_refuses_cuda(self, one_gib: SliceWorld) -> None:
        one_gib.driver = one_gib.shim
        one_gib.write_limit()
        done = one_gib.run("print(cu.code('cuInit', 0))")
        assert done.stdout.strip() == "800"
        assert "leads back" in done.stderr
