"""A constructed handler: one callable in the form in which a worker calls it."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context
from pgpu.functions.handler.call_signature import Signature

Values = tuple[Any, ...]
"""One request's arguments in the order of `Signature.parameters`; if the handler has `**others`, a dict of them follows."""

_Call = Callable[[Callable[..., Any], Values, Any], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """A callable that is ready for requests."""

    call: Callable[[Values, Context], Any]
    """Calls it with one request's arguments; returns the result, a coroutine, or an iterator. Not for batches."""

    call_batch: Callable[[Sequence[Values], Sequence[Context]], Any]
    """Calls it once with the arguments of several requests; returns a list of their results, or a coroutine of it."""

    signature: Signature
    target: Any
    """The user's own object."""

    warmup: Callable[[], Any] | None = None
    """Called once after construction, before the first request."""

    health: Callable[[], Any] | None = None
    """Liveness check: after a false result or an exception the worker is replaced."""

    close: Callable[[], Any] | None = None
    """Called once at an orderly end of the worker."""


def handler_of(target: Any, signature: Signature) -> Handler:
    """Make a handler of a callable and its optional methods `warmup`, `health` and `close`.

    Raises:
        RequestError: Its `health` is a coroutine function, whose result would always be true.
    """
    methods = {name: getattr(target, name, None) for name in ("warmup", "health", "close")}
    methods = {name: method if callable(method) else None for name, method in methods.items()}
    if inspect.iscoroutinefunction(methods["health"]):
        raise RequestError("health() is asynchronous", hint="make it a plain method; it is called between requests")
    bind = _binding_of(signature)

    def call(values: Values, context: Context) -> Any:
        return bind(target, values, context)

    def call_batch(rows: Sequence[Values], contexts: Sequence[Context]) -> Any:
        columns = tuple(list(column) for column in zip(*rows, strict=True))
        return bind(target, columns, list(contexts))

    return Handler(call=call, call_batch=call_batch, signature=signature, target=target, **methods)


def _binding_of(signature: Signature) -> _Call:
    """Choose once how values become arguments; the usual case, all by position, costs one call."""
    named = tuple(each.name for each in signature.parameters if each.is_keyword_only)
    place, context_name = signature.context_index, signature.context_name
    is_plain = not named and not signature.takes_others and context_name is None
    if is_plain and place is None:
        return lambda target, values, _context: target(*values)
    if is_plain:
        return lambda target, values, context: target(*values[:place], context, *values[place:])
    positional = len(signature.parameters) - len(named)

    def bind(target: Callable[..., Any], values: Values, context: Any) -> Any:
        first = list(values[:positional])
        if place is not None:
            first.insert(place, context)
        by_name = dict(zip(named, values[positional:], strict=False))
        if context_name is not None:
            by_name[context_name] = context
        others = values[-1] if signature.takes_others else {}
        return target(*first, **by_name, **others)

    return bind
