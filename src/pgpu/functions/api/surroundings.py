"""What a replica finds around its code: variables, secrets, directories and a cache, in the text form of a declaration."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pgpu.errors import RequestError
from pgpu.units import is_text, quoted

_OWN_VARIABLES = re.compile(r"(PGPU|LD)_.*|PYTHON(PATH|HOME)")
"""They would change what pgpu's own processes of a replica load."""

_OWN_PLACES = ("/function", "/run/secrets", "/tmp")  # noqa: S108 - of a container
"""Mount points of a replica's container, beside those that begin with `/.pgpu`."""

_GENERATION = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class SecretUse:
    """A secret that a replica gets as a file, and on request as a variable; its text form is `NAME`, `NAME:env` or `NAME:env=VARIABLE`."""

    name: str
    variable: str | None = None

    def __str__(self) -> str:
        return self.name if self.variable is None else f"{self.name}:env={self.variable}"


@dataclass(frozen=True, slots=True)
class DirectoryMount:
    """A directory in a replica's container; its text form is `SOURCE:TARGET` or `SOURCE:TARGET:rw`."""

    source: str
    """Absolute path on the server's machine; on a cluster the name of a PersistentVolumeClaim."""

    target: str
    """Absolute path in the container, without `.` and `..`."""

    is_writable: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':rw' if self.is_writable else ''}"


@dataclass(frozen=True, slots=True)
class CacheUse:
    """A generation of a user's cache in a replica; its text form is `NAME:TARGET` or `NAME@GENERATION:TARGET`."""

    name: str
    target: str
    """Absolute path in the container, without `.` and `..`."""

    generation: str | None = None
    """Hexadecimal digits, by the server; None until a version is stored."""

    def __str__(self) -> str:
        return f"{self.label}:{self.target}"

    @property
    def label(self) -> str:
        """`NAME` or `NAME@GENERATION`."""
        return self.name if self.generation is None else f"{self.name}@{self.generation}"


def check_secret_name(name: str) -> str:
    """Return the name of a secret unchanged: it is also a file's.

    Raises:
        RequestError: It is not valid.
    """
    if not _NAME.fullmatch(name):
        raise RequestError(f"{quoted(name)} is not a secret's name", hint="up to 63 letters, digits and _ . -")
    return name


def parse_secret(text: str) -> SecretUse:
    """Parse the use of a secret.

    Raises:
        RequestError: It is none.
    """
    name, separator, form = text.partition(":")
    check_secret_name(name)
    if not separator:
        return SecretUse(name)
    word, _, variable = form.partition("=")
    variable = check_variable(variable or name) if word == "env" and form != "env=" else ""
    # A shell exports it as well.
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", variable):
        raise RequestError(f"{quoted(form)} is no form of a secret", hint=f"{name}, or {name}:env=VARIABLE")
    return SecretUse(name, variable)


def parse_mount(text: str) -> DirectoryMount:
    """Parse a mount.

    Raises:
        RequestError: It is none, or its place in the container is pgpu's.
    """
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in {"", "ro", "rw"} or "\0" in text or not is_text(text):
        raise RequestError(f"{quoted(text)} is no mount", hint="write it like /srv/weights:/weights or …:/weights:rw")
    return DirectoryMount(source, check_place(target), mode == "rw")


def parse_cache(text: str) -> CacheUse:
    """Parse the use of a cache.

    Raises:
        RequestError: It is none.
    """
    label, separator, target = text.partition(":")
    name, at, generation = label.partition("@")
    if not separator or not _NAME.fullmatch(name) or (at and not _GENERATION.fullmatch(generation)):
        raise RequestError(f"{quoted(text)} is no cache", hint="write it like weights:/cache")
    return CacheUse(name, check_place(target), generation or None)


def parse_command(value: object) -> str:
    """Parse the command of a shell.

    Raises:
        RequestError: It is none.
    """
    if not isinstance(value, str) or not value.strip() or "\0" in value or not is_text(value):
        raise RequestError(f"{quoted(str(value))} is no command", hint='write it like "python fetch.py"')
    return value


def check_place(target: str) -> str:
    """Return a mount point in a replica's container, normalized.

    Raises:
        RequestError: It is not absolute, or covers a mount of pgpu's or lies in one: the engine would make it there as root.
    """
    place = posixpath.normpath(target)
    taken = (own for own in _OWN_PLACES if f"{own}/".startswith(f"{place}/") or place.startswith(f"{own}/"))
    if not place.startswith("/") or place.startswith(("//", "/.pgpu")) or place == "/" or next(taken, None):
        raise RequestError(f"nothing can be mounted at {quoted(target)}", hint="name a place like /weights")
    return place


def parse_environment(value: object) -> dict[str, str]:
    """Parse variables: a table of texts by name.

    Raises:
        RequestError: It is no such table, or a name is not allowed.
    """
    if not isinstance(value, Mapping):
        raise RequestError(f"{quoted(str(value))} is not a table", hint='write it like {"MODEL": "small"}')
    return {check_variable(name): _check_value(name, each) for name, each in value.items()}


def check_variable(name: object) -> str:
    """Return the name of a variable unchanged.

    Raises:
        RequestError: It is none, or is pgpu's or the loader's.
    """
    if not isinstance(name, str) or not name or re.search(r"[=\s\0]", name) or not is_text(name):
        raise RequestError(f"{quoted(str(name))} is not a variable's name", hint="letters, digits and _")
    if _OWN_VARIABLES.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} would change what pgpu itself loads", hint="set it in the image, or in the function's code"
        )
    return name


def _check_value(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value or not is_text(value):
        raise RequestError(f"the value of {quoted(name)} is not text", hint='write it in quotes: "8"')
    return value
