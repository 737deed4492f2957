"""Imports a callable by its name, `module:attribute` or `file.py:attribute`, and constructs it.

Exceptions of the user's module pass through unchanged, with their traceback.
"""

import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration, attached_declaration
from pgpu.functions.handler.call_signature import Signature, is_asgi, signature_of
from pgpu.functions.handler.handler import Handler, handler_of
from pgpu.units import quoted

_HINT = "write it like app.py:Detector or package.module:Detector"


@dataclass(frozen=True, slots=True)
class Loaded:
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
    except BaseException:
        # A module that failed to import must not be found by a later import.
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
