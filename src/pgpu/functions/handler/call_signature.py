"""What a handler takes and gives, read from its annotations once, before the first request.

It refuses what no request could fill: a positional catch-all without a name, an annotation that is not known at run time.
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
    """Its type in one request, as in the code; `Any` where nothing is said. Of a batch's list, that of an element."""

    default: Any = REQUIRED
    is_keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler takes and gives for one request."""

    parameters: tuple[Parameter, ...]
    """In the order in which values are passed; the context is not among them."""

    result: Any = Any
    """The type of one answer, or of one piece of a stream."""

    description: str = ""
    """The first paragraph of its docstring."""

    context_index: int | None = None
    """Before which of the parameters the context goes; None: it wants none."""

    context_name: str | None = None
    """The context's name where it is passed by name; else None."""

    takes_others: bool = False
    """It has `**others`: what the request says beyond the named ones."""

    others: Any = Any
    """The type of each of the others."""

    is_batched: bool = False
    """Each argument is a list with one element for each request, and so is the result."""

    is_async: bool = False
    """It is a coroutine function or an asynchronous generator: it is called on an event loop."""

    is_stream: bool = False
    """It gives its answer in pieces: an iterator, or an asynchronous one."""


def signature_of(function: Callable[..., Any], *, is_batched: bool = False, skip: int = 0) -> Signature:
    """Read a callable's signature.

    Args:
        function: A function or bound method.
        is_batched: Its arguments are lists with one element for each request.
        skip: Parameters at the start that are not a request's, such as `self`.

    Raises:
        RequestError: It takes what no request can fill.
    """
    plain = _code_of(function)
    names = getattr(plain, "__globals__", {})
    raw = list(_parameters_of(function))[skip:]
    hints = {each.name: _resolved(each, names) for each in raw}
    contexts = [each for each in raw if hints[each.name] in {Context, list[Context]}]
    if len(contexts) > 1:
        raise RequestError(
            "the handler asks for its context twice", hint="one parameter of type pgpu.Context is enough"
        )
    result = _result_of(function, names)
    is_stream = _is_stream(plain, result)
    if is_stream and is_batched:
        raise RequestError("a handler of batches cannot stream", hint="return a list, one result for each request")
    others = next((each for each in raw if each.kind is inspect.Parameter.VAR_KEYWORD), None)
    if others is not None and is_batched:
        raise RequestError(
            f"a handler of batches cannot take **{others.name}", hint="name each argument: it is a list of one kind"
        )
    return Signature(
        parameters=tuple(_parameter(p, hints, is_batched) for p in raw if p.kind in _NAMED and p not in contexts),
        result=_element(result) if is_batched or is_stream else result,
        description=_first_paragraph(plain),
        **_context_place(raw, contexts),
        takes_others=others is not None,
        others=hints[others.name] if others else Any,
        is_batched=is_batched,
        is_async=inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain),
        is_stream=is_stream,
    )


def is_asgi(function: Callable[..., Any], *, skip: int = 0) -> bool:
    """Say whether a callable is an ASGI application, by the names that its specification gives to the parameters."""
    try:
        return [each.name for each in _parameters_of(function)][skip:] == ["scope", "receive", "send"]
    except RequestError:
        return False


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Find the function that was written: under wrappers, partial application and an instance's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    plain: Callable[..., Any] = inspect.unwrap(function)
    written: Callable[..., Any] = getattr(plain, "__func__", plain)
    return written


def _parameters_of(function: Callable[..., Any]) -> collections.abc.Iterable[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise RequestError(
            f"the parameters of {function!r} cannot be read", hint="wrap it in a function with annotations"
        ) from error
    except NameError as error:  # Python 3.14 evaluates annotations here
        raise RequestError(f"an annotation cannot be evaluated: {error}", hint=_AT_RUN_TIME) from error
    return [each for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _resolved(parameter: inspect.Parameter, names: Mapping[str, Any]) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    try:
        return _evaluated(parameter.annotation, names)
    except Exception as error:  # an annotation is the user's code and may raise anything
        raise RequestError(
            f"parameter {parameter.name}: the annotation {parameter.annotation!r} is not known at run time",
            hint=_AT_RUN_TIME,
        ) from error


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    holder = type("_Holder", (), {"__annotations__": {"it": annotation}})
    return typing.get_type_hints(holder, dict(names), {}, include_extras=True)["it"]


def _result_of(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    try:
        return _evaluated(annotation, names)
    except Exception:  # noqa: BLE001 - the user's code may raise anything, and a result needs no annotation
        return Any


def _is_stream(function: Callable[..., Any], result: Any) -> bool:
    is_written_so = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return is_written_so or (typing.get_origin(result) or result) in _STREAMS


def _element(annotation: Any) -> Any:
    is_annotated = typing.get_origin(annotation) is typing.Annotated
    bare = typing.get_args(annotation)[0] if is_annotated else annotation
    arguments = typing.get_args(bare)
    if typing.get_origin(bare) in _LISTS + _STREAMS and arguments:
        return arguments[0]
    return Any


def _parameter(raw: inspect.Parameter, hints: Mapping[str, Any], is_batched: bool) -> Parameter:  # noqa: FBT001
    annotation = hints[raw.name]
    return Parameter(
        name=raw.name,
        annotation=_element(annotation) if is_batched else annotation,
        default=raw.default,
        is_keyword_only=raw.kind is inspect.Parameter.KEYWORD_ONLY,
    )


def _context_place(raw: list[inspect.Parameter], contexts: list[inspect.Parameter]) -> dict[str, Any]:
    if not contexts:
        return {}
    if contexts[0].kind is inspect.Parameter.KEYWORD_ONLY:
        return {"context_name": contexts[0].name}
    return {"context_index": raw.index(contexts[0])}


def _first_paragraph(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
