"""How many examples Hypothesis tries of a property: some in `make test`, and all in `make test-soak`."""

import os
from typing import Any

from hypothesis import settings


def examples(some: int, every: int, **options: Any) -> settings:
    """Return Hypothesis' settings with `some` examples, or with `every` one where PGPU_ALL_EXAMPLES is set."""
    return settings(max_examples=every if "PGPU_ALL_EXAMPLES" in os.environ else some, **options)
