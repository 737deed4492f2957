"""A handler's parameters and result, inspected once, before the first request.

Rejects what a request cannot fill, such as a parameter whose annotation does not exist at run time.
"""

import collections.abc
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

_AT_RUN_TIME = "import it outside of `if TYPE_CHECKING`"

_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
)
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, tuple)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a handler that a request fills."""

    name: str
    annotation: Any = Any
    """Its type in one request; `Any` without an annotation. For a batch, the type of a list's element."""

    default: Any = REQUIRED
    is_keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters and result of a handler for one request."""

    parameters: tuple[Parameter, ...]
    """In the order in which values are passed, without the context."""

    result: Any = Any
    """The type of one result, or of one item of a stream."""

    description: str = ""
    """The first paragraph of its docstring."""

    context_index: int | None = None
    """Index of the parameter before which the context is passed; None: not by position."""

    context_name: str | None = None
    """The context's parameter if it is passed by name; else None."""

    takes_others: bool = False
    """It has `**others`, which get the request's further arguments."""

    others: Any = Any
    """The type of each of the others."""

    is_batched: bool = False
    """Each argument is a list with one element for each request, and so is the result."""

    is_async: bool = False
    """It is a coroutine function or an asynchronous generator: it is called on an event loop."""

    is_stream: bool = False
    """Its result is an iterator or an asynchronous one."""


def signature_of(function: Callable[..., Any], *, is_batched: bool = False, skip: int = 0) -> Signature:
    """Inspect a callable.

    Args:
        function: A function or bound method.
        is_batched: Its arguments are lists with one element for each request.
        skip: Leading parameters that a request does not fill, such as `self`.

    Raises:
        RequestError: A request cannot fill its parameters.
    """
    plain = _underlying(function)
    names = getattr(plain, "__globals__", {})
    raw = _parameters_of(function)[skip:]
    hints = {each.name: _parameter_type(each, names) for each in raw}
    contexts = [each for each in raw if hints[each.name] in {Context, list[Context]}]
    if len(contexts) > 1:
        raise RequestError("the handler takes its context twice", hint="one parameter of type pgpu.Context is enough")
    context = contexts[0] if contexts else None
    is_by_name = context is not None and context.kind is inspect.Parameter.KEYWORD_ONLY
    result = _result_type(function, names)
    is_generator = inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)
    is_stream = is_generator or (typing.get_origin(result) or result) in _STREAMS
    if is_stream and is_batched:
        raise RequestError("a handler of batches cannot stream", hint="return a list, one result for each request")
    others = next((each for each in raw if each.kind is inspect.Parameter.VAR_KEYWORD), None)
    if others is not None and is_batched:
        raise RequestError(
            f"a handler of batches cannot take **{others.name}", hint="name each argument: it is a list of one kind"
        )
    parameters = tuple(
        Parameter(
            name=each.name,
            annotation=_element_type(hints[each.name]) if is_batched else hints[each.name],
            default=each.default,
            is_keyword_only=each.kind is inspect.Parameter.KEYWORD_ONLY,
        )
        for each in raw
        if each.kind in _NAMED and each is not context
    )
    return Signature(
        parameters=parameters,
        result=_element_type(result) if is_batched or is_stream else result,
        description=inspect.cleandoc(plain.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        context_index=raw.index(context) if context is not None and not is_by_name else None,
        context_name=context.name if context is not None and is_by_name else None,
        takes_others=others is not None,
        others=hints[others.name] if others else Any,
        is_batched=is_batched,
        is_async=inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain),
        is_stream=is_stream,
    )


def is_asgi(function: Callable[..., Any], *, skip: int = 0) -> bool:
    """Whether a callable is an ASGI application, by the parameters' names in the ASGI specification."""
    try:
        return [each.name for each in _parameters_of(function)][skip:] == ["scope", "receive", "send"]
    except RequestError:
        return False


def _underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function below wrappers, `functools.partial` and an instance's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    plain: Callable[..., Any] = inspect.unwrap(function)
    underlying: Callable[..., Any] = getattr(plain, "__func__", plain)
    return underlying


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"the parameters of {function!r} cannot be read", hint="wrap it in a function with annotations"
        ) from error
    except NameError as error:  # Python 3.14 evaluates annotations here
        raise RequestError(f"an annotation cannot be evaluated: {error}", hint=_AT_RUN_TIME) from error
    return [each for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _parameter_type(parameter: inspect.Parameter, names: Mapping[str, Any]) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    try:
        return _evaluate(parameter.annotation, names)
    except Exception as error:  # an annotation is the user's code and may raise anything
        raise RequestError(
            f"parameter {parameter.name}: the annotation {parameter.annotation!r} is not known at run time",
            hint=_AT_RUN_TIME,
        ) from error


def _result_type(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    try:
        return _evaluate(annotation, names)
    except Exception:  # noqa: BLE001 - the user's code may raise anything, and a result needs no annotation
        return Any


def _evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    holder = type("_Holder", (), {"__annotations__": {"it": annotation}})
    return typing.get_type_hints(holder, dict(names), {}, include_extras=True)["it"]


def _element_type(annotation: Any) -> Any:
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    bare = typing.get_args(annotation)[0] if is_annotated else annotation
    arguments = typing.get_args(bare)
    return arguments[0] if typing.get_origin(bare) in _LISTS + _STREAMS and arguments else Any
