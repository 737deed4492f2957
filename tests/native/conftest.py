"""The slices that most tests of the shim begin with, and jobs under monitors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.monitored import Monitored
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


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Monitored]]:
    made: list[Monitored] = []

    def make_one(**options: object) -> Monitored:
        made.append(Monitored(tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for each in made:
        each.close()
