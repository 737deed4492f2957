"""How many examples Hypothesis tries of a property that takes long: some in `make test`, and all in `make test-soak`."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def examples(some: int, every: int, **options: Any) -> Callable[[Any], Any]:
    """Return the settings and the mark of such a test.

    Args:
        some: Examples in `make test`.
        every: Examples where PGPU_ALL_EXAMPLES is set, as in `make test-soak`.
        options: More of Hypothesis' settings.
    """
    chosen = settings(max_examples=every if "PGPU_ALL_EXAMPLES" in os.environ else some, **options)
    return lambda test: pytest.mark.examples(chosen(test))
