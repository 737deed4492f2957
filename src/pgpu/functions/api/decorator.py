"""`@pgpu.function`, which attaches a declaration to a callable, and the `Context` that a handler gets.

The decorator returns the same object, so a decorated class is used in a notebook or in pytest like any other class.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pgpu.errors import RequestError
from pgpu.functions.api.declaration import Batch, Declaration, parse_declaration

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
    retry_batches: bool | None = None,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    scale_to_zero_after: str | float | None = None,
    target_concurrency: int | None = None,
    max_wait: str | float | None = None,
    network: str | None = None,
    public: bool | None = None,
    requirements: list[str] | tuple[str, ...] | None = None,
    arguments: dict[str, object] | None = None,
    env: dict[str, str] | None = None,
    secrets: list[str] | tuple[str, ...] | None = None,
    mounts: list[str] | tuple[str, ...] | None = None,
    cache: str | None = None,
    fill: str | None = None,
    fill_secrets: list[str] | tuple[str, ...] | None = None,
    asgi: bool | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    idle: str | float | None = None,
    keep_warm: str | None = None,
) -> Callable[[_Target], _Target]:
    """Declare the resources and limits of a function: `@pgpu.function(memory="4GiB", compute="25%", timeout="30s")`.

    Text carries its unit; a bare number is bytes, seconds or a share from 0 to 1. `Declaration` documents each field and
    its default. `minimum`, `maximum`, `idle` and `keep_warm` are names of before, with a `DeprecationWarning`.

    Returns:
        A decorator that sets `__pgpu__` on a class, function or instance and returns the same object.

    Raises:
        RequestError: A field has an invalid value.
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
    """Return the declaration that the decorator attached to a callable; the defaults if there is none."""
    found = getattr(target, _ATTRIBUTE, None)
    return found if isinstance(found, Declaration) else Declaration()


@dataclass(frozen=True, slots=True)
class Context:
    """The request that a handler serves, passed to its parameter `ctx: pgpu.Context`.

    A context made without a server, as in a test, has no deadline and is never cancelled.
    """

    request_id: str = ""
    """The id in the response header `X-Request-Id` and in the log."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """The request's headers, names in lower case."""

    deadline_seconds: float | None = None
    """When the caller stops waiting, on the clock of `time.monotonic()`; None: no deadline."""

    ask_cancelled: Callable[[], bool] = lambda: False
    """Called by `is_cancelled`; returns whether the caller left."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the answer is no longer needed: the caller left, or its deadline passed."""
        return self.ask_cancelled() or self.remaining_seconds() <= 0

    def remaining_seconds(self) -> float:
        """Seconds until the caller stops waiting; infinite without a deadline, negative after it."""
        return float("inf") if self.deadline_seconds is None else self.deadline_seconds - time.monotonic()
