"""`@pgpu.function`: a declaration hung onto a callable, which stays what it was.

It refuses to wrap: the class still runs in a notebook and in pytest as if pgpu were not there.
"""

from collections.abc import Callable
from typing import TypeVar

from pgpu.errors import RequestError
from pgpu.functions.api.declaration import Batch, Declaration
from pgpu.functions.api.declaration_fields import parse_declaration

_Target = TypeVar("_Target")

_ATTRIBUTE = "__pgpu__"


def function(
    *,
    memory: str | int | None = None,
    compute: str | float | None = None,
    gpus: int | None = None,
    host_memory: str | int | None = None,
    concurrency: int | None = None,
    batch: Batch | int | None = None,
    timeout: str | float | None = None,
    startup_timeout: str | float | None = None,
    idempotent: bool | None = None,
    queue_limit: int | None = None,
    max_body: str | int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    idle: str | float | None = None,
    keep_warm: str | None = None,
    network: str | None = None,
    public: bool | None = None,
    requirements: list[str] | tuple[str, ...] | None = None,
    arguments: dict[str, object] | None = None,
    asgi: bool | None = None,
) -> Callable[[_Target], _Target]:
    """Say what a function asks for: `@pgpu.function(memory="4GiB", compute="25%", timeout="30s")`.

    Text carries its unit; a bare number is bytes, seconds or a share from 0 to 1. What is left out has the default
    that `Declaration` tells, which has each word's meaning too.

    Returns:
        A decorator that sets `__pgpu__` on a class, function or instance and returns that very object.

    Raises:
        RequestError: A value that its word cannot have.
    """
    declaration = parse_declaration(dict(locals()))

    def attach(target: _Target) -> _Target:
        try:
            setattr(target, _ATTRIBUTE, declaration)
        except (AttributeError, TypeError) as error:
            raise RequestError(
                f"{type(target).__name__} cannot carry a declaration", hint="put it on the class, or into pgpu.toml"
            ) from error
        return target

    return attach


def attached_declaration(target: object) -> Declaration:
    """Return what a callable's decorator said, or the defaults where it has none."""
    found = getattr(target, _ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()
