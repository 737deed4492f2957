"""The user's callable: imported by name, inspected, constructed and bound to the form in which a worker calls it.

`load()` imports `module:attribute` or `file.py:attribute`, `signature_of()` inspects parameters and result once, before the
first request, and `Loaded.construct()` makes the `Handler`. `signature_of()` rejects what a request cannot fill, such as a
parameter with an annotation that does not exist at run time. Parameters without an annotation accept anything. No HTTP here.

Runs in the zygote and its workers, and in the child process in which `pgpu function` imports a module to describe it
(`python -m pgpu.functions.dev`). Exceptions of the user's code pass through
unchanged, with their traceback; the worker logs them.
"""

import collections.abc
import functools
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Context, Declaration, attached_declaration
from pgpu.structs import Struct
from pgpu.units import quoted

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

_HINT = "write it like app.py:Detector or package.module:Detector"
_AT_RUN_TIME = "import it outside of `if TYPE_CHECKING`"

_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
)
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, tuple)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)


class Parameter(Struct, frozen=True):
    """One argument of a handler that a request fills."""

    name: str
    annotation: Any = Any
    """Its type in one request; `Any` without an annotation. For a batch, the type of a list's element."""

    default: Any = REQUIRED
    is_keyword_only: bool = False


class Signature(Struct, frozen=True):
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


Values = tuple[Any, ...]
"""One request's arguments in the order of `Signature.parameters`; if the handler has `**others`, a dict of them follows."""

_Call = Callable[[Callable[..., Any], Values, Any], Any]


class Handler(Struct, frozen=True):
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


class Loaded(Struct, frozen=True):
    """An imported callable that is not constructed yet."""

    target: Any
    """The class, function or instance."""

    attribute: str
    """Its name in its module; `api.default_name` derives the function's name from it."""

    declaration: Declaration
    """Its decorator's declaration, with `is_asgi` set for an ASGI application."""

    def signature(self, declaration: Declaration) -> Signature:
        """Inspect its parameters and result.

        Raises:
            RequestError: A parameter cannot be filled from a request.
        """
        is_batched = declaration.batch is not None
        if declaration.is_asgi:
            return Signature(parameters=(), is_async=True)
        if not inspect.isclass(self.target):
            return signature_of(self.target, is_batched=is_batched)
        holder = _holder_of_call(self.target)
        if holder is None:
            raise RequestError(
                f"{self.attribute} has no __call__", hint="give the class a method __call__ that serves a request"
            )
        return signature_of(self.target.__call__, is_batched=is_batched, skip=_own_parameters(holder))

    def construct(self, declaration: Declaration) -> Handler:
        """Construct it with `declaration.arguments`; a function or an instance is used as it is.

        Raises:
            RequestError: The constructor does not take these arguments, or the signature cannot be served.
            Exception: Any exception of the constructor.
        """
        signature = self.signature(declaration)
        self.check_arguments(declaration)
        target = self.target(**declaration.arguments) if inspect.isclass(self.target) else self.target
        return handler_of(target, signature)

    def check_arguments(self, declaration: Declaration) -> None:
        """Check `declaration.arguments` against the constructor without calling it.

        Raises:
            RequestError: An argument is missing or unknown.
        """
        if not inspect.isclass(self.target):
            if declaration.arguments:
                raise RequestError(f"{self.attribute} is no class and takes no arguments", hint="leave arguments out")
            return
        try:
            inspect.signature(self.target).bind(**declaration.arguments)
        except TypeError as error:
            raise RequestError(
                f"the constructor of {self.attribute}: {error}", hint="set its arguments in pgpu.toml, under arguments"
            ) from error
        except ValueError:
            return  # a class in C without a readable signature: its constructor checks the arguments itself


def load(app: str, source: Path) -> Loaded:
    """Import a callable.

    Args:
        app: `module:attribute` or `file.py:attribute`; without an attribute, the only decorated callable of the module.
        source: The module's directory, which is put first on `sys.path`.

    Raises:
        RequestError: The module or attribute does not exist, or is not callable.
        BaseException: Any exception while the module is imported.
    """
    place, _, attribute = app.partition(":")
    if not place or (":" in app and not attribute):
        raise RequestError(f"{quoted(app)} names no callable", hint=_HINT)
    source = source.absolute()
    # First on the path, so that the function imports its own modules rather than installed ones of the same name.
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    module = _import_file(Path(place), source) if place.endswith(".py") else _import_module(place)
    attribute = attribute or _find_declared_name(module, place)
    target = _attribute(module, attribute, place)
    if not callable(target):
        raise RequestError(f"{attribute} in {place} is not callable", hint="name a class with __call__ or a function")
    declaration = attached_declaration(target)
    if not inspect.isclass(target):
        is_application = is_asgi(target)
    else:
        holder = _holder_of_call(target)
        is_application = holder is not None and is_asgi(target.__call__, skip=_own_parameters(holder))
    return Loaded(target, attribute, replace(declaration, is_asgi=declaration.is_asgi or is_application))


def _holder_of_call(target: type) -> type | None:
    # vars() of the defining class keeps a staticmethod as it is; getattr() would return the plain function.
    return next((each for each in target.__mro__ if "__call__" in vars(each)), None)


def _own_parameters(holder: type) -> int:
    """Return how many leading parameters of a class's `__call__` are not filled by a request: `self`, if any."""
    return 0 if isinstance(vars(holder)["__call__"], staticmethod) else 1


def _import_module(name: str) -> ModuleType:
    if not all(name.split(".")) or not name.isprintable():
        raise RequestError(f"{quoted(name)} names no module", hint=_HINT)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise RequestError(f"there is no module {quoted(name)}", hint=_HINT) from error


def _import_file(file: Path, source: Path) -> ModuleType:
    path = (source / file).resolve()
    if not path.is_file():
        raise RequestError(f"there is no file {quoted(str(file))}", hint=_HINT)
    if not path.is_relative_to(source.resolve()):
        raise RequestError(
            f"{quoted(str(file))} is not in the source directory", hint="name the directory that it is in"
        )
    name = ".".join(path.relative_to(source.resolve()).with_suffix("").parts)
    # The module may be imported already under its own name, or another module may have that name.
    is_free = name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None
    module = sys.modules.get(name) if not is_free else _import_module(name)
    if module is not None and module.__file__ is not None and Path(module.__file__).resolve() == path:
        return module
    # The file's own module name is taken, for example by the standard library: import it under another one.
    name = f"pgpu_function_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{quoted(path.name)} cannot be imported", hint=_HINT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:  # SystemExit, too: a module that failed to import must not be found by a later import.
        del sys.modules[name]
        raise
    return module


def _find_declared_name(module: ModuleType, place: str) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if hasattr(value, "__pgpu__") and getattr(value, "__module__", None) == module.__name__
    ]
    if len(own) != 1:
        raise RequestError(
            f"{place} declares {len(own) or 'no'} functions",
            hint=f"name one: {', '.join(f'{place}:{each}' for each in own) or f'{place}:Detector'}",
        )
    return own[0]


def _attribute(module: ModuleType, attribute: str, place: str) -> Any:
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = get_close_matches(part, vars(target) if hasattr(target, "__dict__") else [], 1)
            raise RequestError(
                f"{place} has no {quoted(attribute)}", hint=f"did you mean {near[0]}?" if near else _HINT
            )
        target = getattr(target, part)
    return target
