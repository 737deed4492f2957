"""A constructed handler: one callable with what a worker may ask of it.

It refuses to catch: what the user's code raises goes through to the worker, which logs it and tells the caller its type.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context
from pgpu.functions.handler.call_signature import Signature

Values = tuple[Any, ...]
"""One request's arguments in the order of `Signature.parameters`; after them the others, a dict, if it takes them."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A callable that is ready for requests."""

    call: Callable[[Values, Context], Any]
    """Calls with one request's arguments; gives the result, a coroutine, or an iterator. Not for batches."""

    call_batch: Callable[[Sequence[Values], Sequence[Context]], Any]
    """Calls once with the arguments of several requests; gives their results as one list, or a coroutine of it."""

    signature: Signature
    target: Any
    """The user's own object."""

    warmup: Callable[[], Any] | None = None
    """Called once after construction, before the first request."""

    health: Callable[[], Any] | None = None
    """Whether it can still work: a false answer or an exception has the worker replaced."""

    close: Callable[[], Any] | None = None
    """Called once when the worker leaves in peace."""


def handler_of(target: Any, signature: Signature) -> Handler:
    """Make a handler of a callable, with what it has of `warmup`, `health` and `close`.

    Raises:
        RequestError: Its `health` is a coroutine function, whose answer would always count as yes.
    """
    if inspect.iscoroutinefunction(_method(target, "health")):
        raise RequestError("health() is asynchronous", hint="make it a plain method; it is asked between calls")
    passing = _passing(signature)

    def call(values: Values, context: Context) -> Any:
        return passing(target, values, context)

    def call_batch(rows: Sequence[Values], contexts: Sequence[Context]) -> Any:
        columns = tuple(list(column) for column in zip(*rows, strict=True))
        return passing(target, columns, list(contexts))

    return Handler(
        call=call,
        call_batch=call_batch,
        signature=signature,
        target=target,
        warmup=_method(target, "warmup"),
        health=_method(target, "health"),
        close=_method(target, "close"),
    )


def _method(target: Any, name: str) -> Callable[[], Any] | None:
    found = getattr(target, name, None)
    return found if callable(found) else None


def _passing(signature: Signature) -> Callable[[Callable[..., Any], Values, Any], Any]:
    """Choose once how values become arguments; the usual case, all by position, costs nothing."""
    named = tuple(each.name for each in signature.parameters if each.is_keyword_only)
    place = signature.context_index
    is_plain = not named and not signature.takes_others and signature.context_name is None
    if is_plain and place is None:
        return lambda target, values, _context: target(*values)
    if is_plain:
        return lambda target, values, context: target(*values[:place], context, *values[place:])
    return _passing_by_name(signature, named)


def _passing_by_name(signature: Signature, named: tuple[str, ...]) -> Callable[[Callable[..., Any], Values, Any], Any]:
    positional = len(signature.parameters) - len(named)
    place, context_name = signature.context_index, signature.context_name

    def pass_on(target: Callable[..., Any], values: Values, context: Any) -> Any:
        first = list(values[:positional])
        if place is not None:
            first.insert(place, context)
        by_name = dict(zip(named, values[positional:], strict=False))
        if context_name is not None:
            by_name[context_name] = context
        others = values[-1] if signature.takes_others else {}
        return target(*first, **by_name, **others)

    return pass_on
