"""Hard slices of a GPU for processes and containers.

docs/architecture.md lists the rooms of the package and their order, which import-linter checks.

The package itself holds no code: what the author of a function writes, `pgpu.function`, `pgpu.Batch` and `pgpu.Context`, is
imported from its room on first access, so `import pgpu` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgpu.functions.api import Batch, Context, function

__all__ = ["Batch", "Context", "function"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pgpu' has no attribute {name!r}")
    return getattr(import_module("pgpu.functions.api"), name)
