"""Read a file of many jobs: TOML, with the options of `pgpu submit` as keys.

    [defaults]
    memory = "4GiB"

    [jobs.prepare]
    command = "python prepare.py"

    [jobs.train]
    command = ["python", "train.py"]
    after = "prepare"
    array = "0-9%2"

The whole file is read before anything is asked of anybody. It refuses keys that it does not know: a misspelled one would
be a job without what it was to say.
"""

import difflib
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pgpu.cli.submission import job_arguments
from pgpu.errors import RequestError
from pgpu.model import SharingWish, Submission
from pgpu.model.validation import check_submission

ReadSettings = Callable[[str | None, str | None], tuple[float | None, SharingWish]]
"""Reads how long a job may wait, in seconds, and how it shares its GPUs; None is what the settings say."""

Table = Mapping[str, Any]
Number = TypeVar("Number", int, float)

_LARGEST_NUMBER = 10**18


class _WrongValueError(Exception):
    """What is expected of a key, in words."""


def read_job_file(path: Path, read_settings: ReadSettings) -> list[Submission]:
    """Read every job of a file.

    Args:
        path: Of the file.
        read_settings: See `ReadSettings`.

    Raises:
        RequestError: It cannot be read, or one of its jobs cannot; says which and where.
    """
    document = _parsed(path)
    _refuse_unknown(document, ("defaults", "jobs"), str(path))
    defaults = _values(document.get("defaults", {}), f"{path}: defaults")
    jobs = document.get("jobs")
    if not isinstance(jobs, dict) or not jobs:
        raise RequestError(f"{path}: there are no jobs in it", hint='write [jobs.NAME], and command = "…" below it')
    return [_submission(name, table, defaults, f"{path}: jobs.{name}", read_settings) for name, table in jobs.items()]


def _parsed(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise RequestError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    except (ValueError, RecursionError) as exc:  # more than TOML's own error: numbers too long, tables too deep
        raise RequestError(f"{path} is not TOML: {str(exc).partition(';')[0]}") from exc


def _submission(name: str, table: object, defaults: Table, place: str, read_settings: ReadSettings) -> Submission:
    own = _values(table, place)
    values = {**defaults, **own, "env": [*defaults.get("env", ()), *own.get("env", ())]}
    array = values.get("array")
    try:
        wait_timeout_seconds, sharing = read_settings(values.get("wait-timeout"), values.get("sharing"))
        spec, request = job_arguments.read_job(
            command=tuple(values.get("command", ())),
            memory=values.get("memory", job_arguments.AUTO) if values.get("gpus", 1) else own.get("memory"),
            gpu_count=values.get("gpus", 1),
            compute=job_arguments.ComputeArguments(
                values.get("compute"),
                sharing,
                is_strict=values.get("strict", False),
                oversubscribes=values.get("oversubscribe", False),
                preempts=values.get("preempt", False),
            ),
            priority=values.get("priority", "normal"),
            retries_out_of_memory=values.get("retry-oom", False),
            image=values.get("image"),
            environment_words=values["env"],
            environment_files=values.get("env-file", ()),
            volume_words=values.get("volume", ()),
            working_directory=values.get("workdir"),
            user=values.get("user"),
            name=name,
            wants_tty=False,
            wants_stdin=False,
            is_detached=True,
            remove=values.get("rm", True),
            wait_for_memory=values.get("wait-for-memory", "0s"),
        )
        submission = Submission(
            spec,
            request,
            tuple(values.get("after", ())),
            None if array is None else job_arguments.read_array(array),
            wait_timeout_seconds,
        )
        check_submission(submission)
    except RequestError as exc:
        raise RequestError(f"{place}: {exc}", hint=exc.hint, nearest_bytes=exc.nearest_bytes) from exc
    return submission


def _values(table: object, place: str) -> dict[str, Any]:
    """Read the keys of one table into what `asking` takes."""
    if not isinstance(table, dict):
        raise RequestError(f"{place} is no table", hint=f"write [{place.rsplit(': ', 1)[-1]}] on a line of its own")
    _refuse_unknown(table, KEYS, place)
    return {key: _value(key, value, place) for key, value in table.items()}


def _value(key: str, value: object, place: str) -> Any:
    try:
        return _READERS[key](value)
    except _WrongValueError as exc:
        raise RequestError(f"{place}: {key} must be {exc}") from exc


def _refuse_unknown(table: Table, known: Sequence[str], place: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(known)}"
            raise RequestError(f"{place}: {key!r} is no key of it", hint=hint)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _WrongValueError("text")
    return value


def _text_or_number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _WrongValueError("text or a number")
    return value if isinstance(value, str) else str(_short(value))


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _WrongValueError("a whole number")
    return _short(value)


def _short(number: Number) -> Number:
    """Refuse what Python would not write in digits."""
    if abs(number) >= _LARGEST_NUMBER:
        raise _WrongValueError("a number of at most 18 digits")
    return number


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongValueError("true or false")
    return value


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _WrongValueError("text or a list of texts")
    return value


def _command(value: object) -> list[str]:
    """Split a text as a shell would; no shell runs it."""
    if not isinstance(value, str):
        return _texts(value)
    try:
        return shlex.split(value)
    except ValueError as exc:
        raise _WrongValueError(f"a command, and has {str(exc).lower()}") from exc


def _variables(value: object) -> list[str]:
    if not isinstance(value, dict):
        return _texts(value)
    if any("=" in name for name in value):
        raise _WrongValueError("a table of variables, whose names hold no =")
    try:
        return [f"{name}={_text_or_number(each)}" for name, each in value.items()]
    except _WrongValueError as exc:
        raise _WrongValueError("a table of texts and numbers, or a list of KEY=VALUE") from exc


_READERS: Mapping[str, Callable[[object], Any]] = {
    "command": _command,
    "memory": _text_or_number,
    "gpus": _number,
    "compute": _text_or_number,
    "strict": _truth,
    "sharing": _text,
    "oversubscribe": _truth,
    "preempt": _truth,
    "priority": _text_or_number,
    "after": _texts,
    "array": _text_or_number,
    "retry-oom": _truth,
    "wait-timeout": _text_or_number,
    "image": _text,
    "env": _variables,
    "env-file": _texts,
    "volume": _texts,
    "workdir": _text,
    "user": _text,
    "rm": _truth,
    "wait-for-memory": _text_or_number,
}
"""Each key of a job, and how its value is read."""

KEYS = tuple(_READERS)
