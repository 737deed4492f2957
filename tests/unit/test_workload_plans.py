"""The workloads' amounts of memory are those of P1 and P2."""

import pytest

from pgpu.workloads.inference import InferencePlan
from pgpu.workloads.training import system_reserve_bytes

MIB = 1 << 20
DEVICE_BYTES = 24_265 * MIB
CONTEXT_BYTES = 300 * MIB


def plan(memory_mib: int = 1205) -> InferencePlan:
    return InferencePlan(memory_mib * MIB, batches=10, batch_size=32, gpu_seconds=0, host_seconds=0, load_seconds=0)


def startup_bytes(context_bytes: int = CONTEXT_BYTES) -> int:
    return context_bytes + plan().first_pool_bytes(context_bytes) + plan().libraries_bytes


@pytest.mark.parametrize("context_bytes", [100 * MIB, 300 * MIB, 301 * MIB + 5])
def test_twenty_three_jobs_can_start_on_p1s_gpu_and_twenty_four_cannot(context_bytes: int) -> None:
    assert 23 * startup_bytes(context_bytes) <= DEVICE_BYTES < 24 * startup_bytes(context_bytes)


def test_twenty_grown_jobs_fit_on_p1s_gpu_and_twenty_one_do_not() -> None:
    grown_bytes = startup_bytes() + sum(plan().growth_bytes(startup_bytes()))

    assert 20 * grown_bytes <= DEVICE_BYTES < 21 * grown_bytes
    assert grown_bytes <= 1205 * MIB


@pytest.mark.parametrize("memory_mib", [400, 1205, 4096])
def test_a_job_of_any_size_never_holds_more_than_it_says(memory_mib: int) -> None:
    this = plan(memory_mib)
    held = CONTEXT_BYTES + this.first_pool_bytes(CONTEXT_BYTES) + this.libraries_bytes
    held += sum(this.growth_bytes(held))

    assert memory_mib - 4 <= held / MIB <= memory_mib


def test_growth_comes_in_several_steps() -> None:
    assert len(list(plan().growth_bytes(startup_bytes()))) > 2


@pytest.mark.parametrize(
    ("free_mib", "compute_major", "kept_mib"),
    [(1800, 8, 225), (24_000, 5, 500), (24_000, 6, 500), (24_000, 7, 1050), (24_000, 8, 1536), (24_000, 9, 1800)],
)
def test_tensorflows_rule_keeps_memory_for_the_system(free_mib: int, compute_major: int, kept_mib: int) -> None:
    assert system_reserve_bytes(free_mib * MIB, compute_major) == kept_mib * MIB
