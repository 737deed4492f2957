"""Read a file of many jobs: TOML, with the options of `pgpu submit` as keys.

    [defaults]
    memory = "4GiB"

    [jobs.prepare]
    command = "python prepare.py"

    [jobs.train]
    command = ["python", "train.py"]
    after = "prepare"
    array = "0-9%2"

The whole file is read before anything is submitted. An unknown key is an error: a misspelled option would otherwise be
ignored.
"""

import difflib
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pgpu.cli.submission.job_arguments import read_submission
from pgpu.cli.submission.job_options import AUTO, FILE, TABLE, JobOptions, Kind
from pgpu.errors import RequestError
from pgpu.model import SharingWish, Submission
from pgpu.model.validation import check_submission

ReadSettings = Callable[[str | None, str | None], tuple[float | None, SharingWish]]
"""Joins `wait-timeout` and `sharing` of a job with the settings; returns the timeout in seconds and the mode."""

Table = Mapping[str, Any]
Number = TypeVar("Number", int, float)

_OPTIONS = {row.key: row for row in TABLE if FILE in row.used_by}
KEYS = tuple(_OPTIONS)
_LARGEST_NUMBER = 10**18


class _WrongValueError(Exception):
    """A value has the wrong type; the message is what it must be."""


def read_job_file(path: Path, read_settings: ReadSettings) -> list[Submission]:
    """Read every job of a file.

    Raises:
        RequestError: The file or one of its jobs cannot be read; the message names the place.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise RequestError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    except (ValueError, RecursionError) as exc:  # besides TOML's own error: numbers too long, tables too deep
        raise RequestError(f"{path} is not TOML: {str(exc).partition(';')[0]}") from exc
    _refuse_unknown(document, ("defaults", "jobs"), str(path))
    defaults = _values(document.get("defaults", {}), f"{path}: defaults")
    jobs = document.get("jobs")
    if not isinstance(jobs, dict) or not jobs:
        raise RequestError(f"{path}: there are no jobs in it", hint='write [jobs.NAME], and command = "…" below it')
    return [_submission(name, table, defaults, f"{path}: jobs.{name}", read_settings) for name, table in jobs.items()]


def _submission(name: str, table: object, defaults: Table, place: str, read_settings: ReadSettings) -> Submission:
    own = _values(table, place)
    values = {**defaults, **own, "environment": (*defaults.get("environment", ()), *own.get("environment", ()))}
    # A default size is for jobs with a GPU: without one, only a size of the job's own is refused.
    memory = values.get("memory", AUTO) if values.get("gpus", 1) else own.get("memory")
    try:
        wait_timeout_seconds, sharing = read_settings(values.get("wait_timeout"), values.get("sharing"))
        options = JobOptions(**{**values, "memory": memory, "name": name, "detach": True})
        submission = read_submission(options, wait_timeout_seconds, sharing)
        check_submission(submission)
    except RequestError as exc:
        raise RequestError(f"{place}: {exc}", hint=exc.hint, nearest_bytes=exc.nearest_bytes) from exc
    return submission


def _values(table: object, place: str) -> dict[str, Any]:
    """Read one table into arguments of `JobOptions`."""
    if not isinstance(table, dict):
        raise RequestError(f"{place} is no table", hint=f"write [{place.rsplit(': ', 1)[-1]}] on a line of its own")
    _refuse_unknown(table, KEYS, place)
    values = {}
    for key, value in table.items():
        try:
            values[_OPTIONS[key].name] = _READERS[_OPTIONS[key].kind](value)
        except _WrongValueError as exc:
            raise RequestError(f"{place}: {key} must be {exc}") from exc
    return values


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
    """Refuse numbers for which `str()` raises (over 4,300 digits) or writes an exponent."""
    if abs(number) >= _LARGEST_NUMBER:
        raise _WrongValueError("a number of at most 18 digits")
    return number


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongValueError("true or false")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _WrongValueError("text or a list of texts")
    return tuple(value)


def _command(value: object) -> tuple[str, ...]:
    """Split text as a shell would; the command itself runs without a shell."""
    if not isinstance(value, str):
        return _texts(value)
    try:
        return tuple(shlex.split(value))
    except ValueError as exc:
        raise _WrongValueError(f"a command, and has {str(exc).lower()}") from exc


def _variables(value: object) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return _texts(value)
    if any("=" in name for name in value):
        raise _WrongValueError("a table of variables, whose names hold no =")
    try:
        return tuple(f"{name}={_text_or_number(each)}" for name, each in value.items())
    except _WrongValueError as exc:
        raise _WrongValueError("a table of texts and numbers, or a list of KEY=VALUE") from exc


_READERS: Mapping[Kind, Callable[[object], Any]] = {
    Kind.TEXT: _text,
    Kind.QUANTITY: _text_or_number,
    Kind.NUMBER: _number,
    Kind.FLAG: _truth,
    Kind.TEXTS: _texts,
    Kind.VARIABLES: _variables,
    Kind.COMMAND: _command,
}
