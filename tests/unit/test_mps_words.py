"""What a job is told under MPS: percentages, limits, and never a word of a GPU that it cannot see."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.enforcement.mps import percentage_of
from pgpu.enforcement.mps.control import environment_of
from pgpu.engine.leases.mps_obstacles import refuse_what_cannot_join
from pgpu.errors import RequestError
from pgpu.model import JobSpec, Request, SharingWish, Slice
from pgpu.units import MIB

MPS = Request(MIB, sharing=SharingWish.MPS)


@pytest.mark.parametrize(
    ("share", "percentage"), [(None, 100), (1.0, 100), (0.3, 30), (0.301, 31), (0.07, 7), (0.29, 29), (0.0001, 1)]
)
def test_a_share_becomes_whole_percents_rounded_up(share: float | None, percentage: int) -> None:
    assert percentage_of(share) == percentage


@given(st.floats(min_value=1e-6, max_value=1))
def test_a_percentage_is_never_less_than_its_share_nor_more_than_one_percent_above(share: float) -> None:
    percentage = percentage_of(share)
    assert 1 <= percentage <= 100
    assert 100 * share - 1e-5 <= percentage < 100 * share + 1


@given(st.integers(min_value=1, max_value=1 << 48), st.none() | st.floats(min_value=0.01, max_value=1))
def test_the_words_name_one_gpu_by_its_ordinal_and_a_limit_no_smaller_than_the_slice(
    memory_bytes: int, share: float | None
) -> None:
    words = dict(environment_of(Slice("GPU-1", memory_bytes, share), Path("/.pgpu/mps")))
    name, _, limit = words["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].partition("=")
    assert name == "0"
    assert limit.endswith("M")
    assert memory_bytes <= int(limit[:-1]) * MIB < memory_bytes + MIB
    assert words["CUDA_MPS_PIPE_DIRECTORY"] == "/.pgpu/mps"


def test_who_asks_for_another_mode_is_not_looked_at() -> None:
    refuse_what_cannot_join(JobSpec((), "oci"), Request(MIB))


def test_a_containers_user_must_be_a_number() -> None:
    with pytest.raises(RequestError, match="only its image knows"):
        refuse_what_cannot_join(JobSpec((), "docker", image="app", user="app:app"), MPS)
