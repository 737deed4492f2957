"""Hard slices of a GPU for processes and containers.

docs/architecture.md lists the rooms of the package and their order, which import-linter checks.

`pgpu.function`, `pgpu.Batch` and `pgpu.Context`, for authors of functions, are imported from `pgpu.functions.api` on first
access: `import pgpu` alone, which every command and replica does, loads no other module of the package.
"""

TYPE_CHECKING = False  # as type checkers take it, without the 4 ms that `typing` takes to import
if TYPE_CHECKING:
    from pgpu.functions.api import Batch, Context, function

__all__ = ["Batch", "Context", "function"]


def __getattr__(name: str) -> object:
    # Called only for names that the module does not have (PEP 562).
    if name not in __all__:
        raise AttributeError(f"module 'pgpu' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - likewise

    return getattr(import_module("pgpu.functions.api"), name)
