"""Translates errors of the Docker SDK to pgpu's errors. The engine's message is kept as part of the text."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
import urllib3
from docker import errors as docker_errors

from pgpu.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    EngineAwayError,
    PgpuError,
    RequestError,
    RuntimeUnavailableError,
)

FOREIGN_ERRORS = (
    docker_errors.DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
    ValueError,
)
"""The exceptions of an SDK call, of all its layers; ValueError comes from unreadable responses."""

_BAD_REQUEST, _CONFLICT = 400, 409
_COMMAND = re.compile(r"exec: \"|executable file|command that was not found", re.IGNORECASE)
_QUOTED_COMMAND = re.compile(r"(?:exec: \"|executable file [`'\"])(?P<command>[^`'\"]+)")
_NOT_FOUND = re.compile(r"executable file.*not found|no such file or directory|was not found", re.IGNORECASE)
_NOT_EXECUTABLE = re.compile(r"permission denied|is a directory|exec format error", re.IGNORECASE)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate errors of the SDK that are raised inside.

    Args:
        doing: The failed action, as the start of the message: `cannot create the container`.
    """
    try:
        yield
    except PgpuError:
        raise
    except FOREIGN_ERRORS as error:
        raise pgpu_error(error, doing) from error


def pgpu_error(error: BaseException, doing: str) -> PgpuError:
    if not isinstance(error, docker_errors.APIError):
        return EngineAwayError(
            f"the container engine does not answer: {_innermost(error)}",
            hint="start Docker or Podman, join its group, or set DOCKER_HOST",
        )
    message = one_line(error)
    if isinstance(error, docker_errors.ImageNotFound):
        return RequestError(f"{doing}: {message}", hint="pull the image first")
    # Engines report failures of runc or crun with 400 as well; these are the machine's, not the request's.
    if error.status_code in {_BAD_REQUEST, _CONFLICT} and "OCI runtime" not in message:
        return RequestError(f"{doing}: {message}")
    return RuntimeUnavailableError(f"{doing}: {message}")


def start_error(message: str) -> PgpuError:
    """Return the error of a container that could not be started, classified as in `docker run`.

    Args:
        message: The engine's message, as one line.

    Source: the exit codes 125, 126 and 127 of `docker run`.
    """
    quoted = _QUOTED_COMMAND.search(message)
    command = quoted["command"] if quoted else "the command"
    if _COMMAND.search(message) and _NOT_FOUND.search(message):
        return CommandNotFoundError(f"{command}: not found in the image")
    if _COMMAND.search(message) and _NOT_EXECUTABLE.search(message):
        return CommandNotExecutableError(f"{command}: cannot be executed in the image")
    return RuntimeUnavailableError(f"the container engine cannot start the container: {message}")


def one_line(error: docker_errors.APIError) -> str:
    """Return the engine's message as one line."""
    return " ".join(str(error.explanation or error).split())


def _innermost(error: BaseException) -> str:
    """Return the operating system's message from the nested exceptions of the SDK."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.strerror:
            return current.strerror
        # requests keeps urllib3's error as an argument, and that one the OSError as an argument or as its cause.
        nested = [argument for argument in current.args if isinstance(argument, BaseException)]
        current = nested[0] if nested else current.__cause__ or current.__context__
    quoted = re.search(r"(?:Error\(\d+, )['\"](?P<words>[^'\"]+)", str(error))
    return quoted["words"] if quoted else " ".join(str(error).split())
