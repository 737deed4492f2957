"""The slices that most tests of the shim begin with."""

from collections.abc import Iterator

import pytest
from tests.slice_world import GIB, SliceWorld, a_slice


@pytest.fixture
def one_gib() -> Iterator[SliceWorld]:
    with a_slice(GIB) as world:
        yield world


@pytest.fixture
def two_gpus() -> Iterator[SliceWorld]:
    """15 GiB of the first GPU, 1 GiB of the second."""
    with a_slice(15 * GIB, GIB) as world:
        yield world
