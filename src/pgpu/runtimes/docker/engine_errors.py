"""Translates errors of calls of the container engine to pgpu's errors. The engine's message is kept as part of the text."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pgpu.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    EngineAwayError,
    PgpuError,
    RequestError,
    RuntimeUnavailableError,
)
from pgpu.host.unix_http import HttpResponse


class CallRefusedError(Exception):
    """The engine answered with an error; the text is its message, as one line."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(message_of(response.body) or f"status {response.status}")
        self.status = response.status


FOREIGN_ERRORS = (CallRefusedError, OSError, ValueError, KeyError, TypeError)
"""The exceptions of a call; the last three come from unreadable responses."""

_BAD_REQUEST, _NOT_FOUND_STATUS, _CONFLICT = 400, 404, 409
_COMMAND = re.compile(r"exec: \"|executable file|command that was not found", re.IGNORECASE)
_QUOTED_COMMAND = re.compile(r"(?:exec: \"|executable file [`'\"])(?P<command>[^`'\"]+)")
_NOT_FOUND = re.compile(r"executable file.*not found|no such file or directory|was not found", re.IGNORECASE)
_NOT_EXECUTABLE = re.compile(r"permission denied|is a directory|exec format error", re.IGNORECASE)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate errors of calls that are made inside.

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
    if not isinstance(error, CallRefusedError):
        reason = error.strerror if isinstance(error, OSError) else None
        return EngineAwayError(
            f"the container engine does not answer: {reason or ' '.join(str(error).split())}",
            hint="start Docker or Podman, join its group, or set DOCKER_HOST",
        )
    message = str(error)
    if error.status == _NOT_FOUND_STATUS and "no such image" in message.lower():
        return RequestError(f"{doing}: {message}", hint="pull the image first")
    # Engines report failures of runc or crun with 400 as well; these are the machine's, not the request's.
    if error.status in {_BAD_REQUEST, _CONFLICT} and "OCI runtime" not in message:
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


def message_of(body: bytes) -> str:
    """Return an error message as one line: the `message` field of a JSON body, or plain text."""
    text = body.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    return " ".join(text.split())
