"""Reads the options of a job, from the command line or from a file of many jobs, into submissions.

An option that cannot be read is an error of one line, before anything is submitted. A file is TOML, with the options of
`pgpu submit` as keys:

    [defaults]
    memory = "4GiB"

    [jobs.prepare]
    command = "python prepare.py"

    [jobs.train]
    command = ["python", "train.py"]
    after = "prepare"
    array = "0-9%2"

It is read whole before anything is submitted. An unknown key is an error: a misspelled option would otherwise be ignored.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pgpu.cli.job_options import AUTO, FILE, TABLE, JobOptions
from pgpu.cli.option_table import OptionKind
from pgpu.errors import RequestError
from pgpu.model import Array, JobSpec, Mount, Objective, OnTimeLimit, Request, Resize, SharingWish, Submission
from pgpu.model.job import MOST_ELEMENTS
from pgpu.model.validation import check_request, check_submission
from pgpu.structs import replace
from pgpu.units import (
    composed,
    parse_compute_share,
    parse_duration_seconds,
    parse_memory_bytes,
    parse_time,
    parse_time_limit_seconds,
    quoted,
)

if TYPE_CHECKING:
    from pgpu.app.settings import Settings

NO_SHARE = "none"
"""The value of `--compute` that removes a job's share."""

MOST_PRIORITY = 100
PRIORITIES = {"low": -50, "normal": 0, "high": 50}
_PRIORITY_HINT = "write low, normal, high, or a number from -100 to 100"
_ARRAY_HINT = "write it like 0-9, 0-9:2, 1,3,7 or 0-99%4"
_MOST_DIGITS = 9

ReadSettings = Callable[[Mapping[str, str | None]], "Settings"]
"""Joins the options of a job that stand for settings (`JobOptions.settings`) with the settings."""

Table = Mapping[str, Any]
Number = TypeVar("Number", int, float)
_OPTIONS = {row.key: row for row in TABLE if FILE in row.used_by}
KEYS = tuple(_OPTIONS)
_LARGEST_NUMBER = 10**18


def read_submission(options: JobOptions, settings: "Settings") -> Submission:
    """Read the options of one job.

    Args:
        options: As they were given.
        settings: In which those that stand for settings are joined already.

    Raises:
        RequestError: An option is missing, cannot be read, or contradicts another one.
    """
    if options.retry_oom and options.no_retry:
        raise RequestError("--retry-oom and --no-retry contradict each other", hint="leave one of them out")
    request = _read_request(options, settings)
    check_request(request)
    if options.image is None:
        if not options.command:
            raise RequestError("there is no command to run", hint="pgpu run --memory 2GiB -- COMMAND")
        for flag, value in (("--volume", options.volumes or None), ("--user", options.user)):
            if value is not None:
                raise RequestError(f"{flag} needs a container", hint=f"add --image IMAGE, or leave {flag} out")
    if options.tty and options.interactive and not options.detach and not sys.stdin.isatty():
        raise RequestError("--tty with --interactive needs a terminal on stdin", hint="leave --tty out in a pipe")
    spec = JobSpec(
        command=options.command,
        runtime="process" if options.image is None else "docker",
        image=options.image,
        environment=tuple(read_environment(options.environment_files, options.environment)),
        volumes=tuple(_read_mount(word) for word in options.volumes),
        working_directory=_read_working_directory(options.working_directory, options.image),
        user=options.user,
        name=None if options.name is None else composed(options.name),
        wants_tty=options.tty,
        wants_stdin=options.interactive,
        remove=options.remove,
        notify=options.notify,
        wait_for_memory_seconds=parse_duration_seconds(options.wait_for_memory),
    )
    indices = None if options.array is None else read_array(options.array)
    return Submission(
        spec,
        request,
        tuple(map(composed, options.after)),
        indices,
        settings.wait_timeout,
        begin_at_seconds=None if options.begin is None else parse_time(options.begin, time.time()),
        is_held=options.hold,
    )


def _read_request(options: JobOptions, settings: "Settings") -> Request:
    request = _read_memory(options.memory, options.gpus)
    if options.on_time_limit is not None and options.time_limit is None:
        raise RequestError("--on-time-limit needs a limit", hint="add --time-limit 2h, or leave --on-time-limit out")
    return replace(
        request,
        compute_share=None if options.compute is None else parse_compute_share(options.compute),
        is_strict=options.strict,
        # The settings may name a mode for all jobs; a job without a GPU has none.
        sharing=settings.sharing if options.gpus else SharingWish.TIME_SLICE,
        oversubscribes=options.oversubscribe,
        preempts=options.preempt,
        priority=read_priority(options.priority),
        retries_out_of_memory=options.retry_oom or (request.is_estimated and not options.no_retry),
        objective=_read_objective(options.objective),
        time_limit_seconds=None if options.time_limit is None else parse_time_limit_seconds(options.time_limit),
        on_time_limit=OnTimeLimit.STOP if options.time_limit is None else OnTimeLimit(settings.on_time_limit),
        gpu_models=tuple(options.gpu_models),
    )


def _read_objective(text: str) -> Objective:
    try:
        return Objective(text)
    except ValueError:
        raise RequestError(
            f"--objective {quoted(text)} is no objective", hint=f"write {' or '.join(Objective)}"
        ) from None


def _read_memory(memory: str | None, gpu_count: int) -> Request:
    if gpu_count < 0:
        raise RequestError(f"--gpus {gpu_count} is not a number of GPUs", hint="leave --gpus out for one")
    if gpu_count == 0 and memory in {None, AUTO}:
        return Request(0, 0)
    if gpu_count == 0:
        raise RequestError("--memory needs a GPU, and --gpus 0 requests none", hint="leave one of them out")
    if memory is None:
        raise RequestError(
            "--memory is missing",
            hint="set the GPU memory of the job: --memory 2GiB or --memory auto; --gpus 0 for none",
        )
    if memory == AUTO:
        return Request(0, gpu_count, is_estimated=True)
    return Request(parse_memory_bytes(memory), gpu_count)


def read_resize(memory: str | None, compute: str | None, *, is_strict: bool | None) -> Resize:
    """Read the new size and share of a job.

    Raises:
        RequestError: Nothing is to change, or an amount cannot be read.
    """
    if memory is None and compute is None and is_strict is None:
        raise RequestError("nothing is to change", hint="add --memory 2GiB, --compute 50%, --strict or --fair")
    share = parse_compute_share(compute) if compute not in {None, NO_SHARE} else None
    return Resize(
        None if memory is None else parse_memory_bytes(memory), 0.0 if compute == NO_SHARE else share, is_strict
    )


def read_priority(text: str) -> int:
    """Read `low`, `normal`, `high`, or a number from -100 to 100.

    Raises:
        RequestError: It is neither.
    """
    if text in PRIORITIES:
        return PRIORITIES[text]
    digits = text.removeprefix("-").removeprefix("+")
    if not _is_number(digits) or int(digits) > MOST_PRIORITY:
        raise RequestError(f"--priority {quoted(text)} is not a priority", hint=_PRIORITY_HINT)
    return int(text)


def read_array(text: str) -> Array:
    """Read `0-9`, `0-9:2`, `1,3,7` or a list of these, with `%N` behind it for at most N at a time.

    Raises:
        RequestError: It is none of these, or names too many.
    """
    words, percent, most = text.partition("%")
    if percent and not _is_number(most):
        raise RequestError(f"--array {quoted(text)}: what follows % is not a number", hint=_ARRAY_HINT)
    # Each index once, in the order of its first mention.
    indices = list(dict.fromkeys(index for word in words.split(",") for index in _read_indices(word, text)))
    return Array(tuple(indices), int(most) if percent else None)


def _read_indices(word: str, text: str) -> range:
    span, colon, step = word.partition(":")
    first, dash, last = span.partition("-")
    given = [first, *([last] if dash else []), *([step] if colon else [])]
    if not all(_is_number(number) for number in given) or (colon and (not dash or int(step) < 1)):
        raise RequestError(f"--array {quoted(text)} cannot be read", hint=_ARRAY_HINT)
    # A range, so that 0-999999999 is refused by its length before any element exists.
    found = range(int(first), int(last if dash else first) + 1, int(step) if colon else 1)
    if not found:
        raise RequestError(f"--array {quoted(text)}: there is nothing from {first} to {last}", hint=_ARRAY_HINT)
    if len(found) > MOST_ELEMENTS:
        raise RequestError(
            f"--array {quoted(text)}: an array has at most {MOST_ELEMENTS} jobs", hint="submit several arrays"
        )
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def read_environment(files: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of `--env-file` and `--env`, as `docker run` reads them.

    Raises:
        RequestError: A file cannot be read, or a word is no variable.
    """
    for path in files:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as exc:  # ValueError: not UTF-8, or a path with a zero byte
            raise RequestError(f"--env-file {path} cannot be read: {exc}") from exc
        # As `docker run --env-file` reads it: no quotes, no `export`, comments only at the beginning of a line.
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield from _read_key_value(line, f"{path}: {line!r}")
    for word in words:
        yield from _read_key_value(word, f"--env {word!r}")


def _read_key_value(word: str, place: str) -> Iterator[tuple[str, str]]:
    """Read `KEY=VALUE`, or `KEY` for this process's own value; an unset one is left out, as Docker does."""
    key, separator, value = word.partition("=")
    if not key or any(character.isspace() for character in key) or "\0" in word:
        raise RequestError(f"{place} is not KEY=VALUE")
    if separator:
        yield key, value
    elif key in os.environ:
        yield key, os.environ[key]


def _read_mount(word: str) -> Mount:
    source, _, rest = word.partition(":")
    target, _, mount_options = rest.partition(":")
    if not source or not target.startswith("/"):
        raise RequestError(f"--volume {word!r} is not HOST:CONTAINER", hint="write /data:/data or ./data:/data:ro")
    # A name without a path is a named volume of the engine and stays as it is, as do absolute paths.
    if source.startswith((".", "~")):
        try:
            source = str(_absolute(Path(source).expanduser()))
        except RuntimeError as exc:
            raise RequestError(f"--volume {word!r}: {source} is not a home directory") from exc
    return Mount(source, target, mount_options)


def _read_working_directory(path: str | None, image: str | None) -> str | None:
    if image is not None:
        return path
    chosen = _absolute(Path(path or "."))
    try:
        is_directory = chosen.is_dir()
    except (OSError, ValueError):  # no permission, a name that is too long, a zero byte
        is_directory = False
    if not is_directory:
        raise RequestError(f"--workdir {path}: there is no such directory")
    return str(chosen)


def _absolute(path: Path) -> Path:
    # getcwd(2) fails with ENOENT if the directory was removed while the shell stood in it.
    try:
        return path.absolute()
    except FileNotFoundError as exc:
        raise RequestError("the current directory is gone", hint="change to one that exists") from exc


class _WrongValueError(Exception):
    """A value has the wrong type; the message is what it must be."""


def read_job_file(path: Path, read_settings: ReadSettings) -> list[Submission]:
    """Read every job of a file.

    Raises:
        RequestError: The file or one of its jobs cannot be read; the message names the place.
    """
    import tomllib  # `pgpu run` and most submissions read no file

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise RequestError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    except (ValueError, RecursionError) as exc:  # besides TOML's own error: numbers too long, tables too deep
        raise RequestError(f"{path} is not TOML: {str(exc).partition(';')[0]}") from exc
    _refuse_unknown(document, ("defaults", "jobs"), str(path))
    defaults = _read_table(document.get("defaults", {}), f"{path}: defaults")
    jobs = document.get("jobs")
    if not isinstance(jobs, dict) or not jobs:
        raise RequestError(f"{path}: there are no jobs in it", hint='write [jobs.NAME], and command = "…" below it')
    return [_read_job(name, table, defaults, f"{path}: jobs.{name}", read_settings) for name, table in jobs.items()]


def _read_job(name: str, table: object, defaults: Table, place: str, read_settings: ReadSettings) -> Submission:
    own = _read_table(table, place)
    values = {**defaults, **own, "environment": (*defaults.get("environment", ()), *own.get("environment", ()))}
    # A default size is for jobs with a GPU: without one, only a size of the job's own is refused.
    memory = values.get("memory", AUTO) if values.get("gpus", 1) else own.get("memory")
    try:
        options = JobOptions(**{**values, "memory": memory, "name": name, "detach": True})
        submission = read_submission(options, read_settings(options.settings()))
        check_submission(submission)
    except RequestError as exc:
        raise RequestError(f"{place}: {exc}", hint=exc.hint, nearest_bytes=exc.nearest_bytes) from exc
    return submission


def _read_table(table: object, place: str) -> dict[str, Any]:
    """Read one table into arguments of `JobOptions`."""
    if not isinstance(table, dict):
        raise RequestError(f"{place} is no table", hint=f"write [{place.rsplit(': ', 1)[-1]}] on a line of its own")
    _refuse_unknown(table, KEYS, place)
    values = {}
    for key, value in table.items():
        # A key of a file is the long option without dashes; `JobOptions` has the name of its field.
        try:
            values[_OPTIONS[key].name] = _READERS[_OPTIONS[key].kind](value)
        except _WrongValueError as exc:
            raise RequestError(f"{place}: {key} must be {exc}") from exc
    return values


def _refuse_unknown(table: Table, known: Sequence[str], place: str) -> None:
    for key in table:
        if key not in known:
            import difflib

            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(known)}"
            raise RequestError(f"{place}: {key!r} is no key of it", hint=hint)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise _WrongValueError("text")
    return value


def _read_quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _WrongValueError("text or a number")
    return value if isinstance(value, str) else str(_check_digits(value))


def _read_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _WrongValueError("a whole number")
    return _check_digits(value)


def _check_digits(number: Number) -> Number:
    """Refuse numbers for which `str()` raises (over 4,300 digits) or writes an exponent."""
    if abs(number) >= _LARGEST_NUMBER:
        raise _WrongValueError("a number of at most 18 digits")
    return number


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _WrongValueError("true or false")
    return value


def _read_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _WrongValueError("text or a list of texts")
    return tuple(value)


def _read_command(value: object) -> tuple[str, ...]:
    """Split text as a shell would; the command itself runs without a shell."""
    if not isinstance(value, str):
        return _read_texts(value)
    try:
        return tuple(shlex.split(value))
    except ValueError as exc:
        raise _WrongValueError(f"a command, and has {str(exc).lower()}") from exc


def _read_variables(value: object) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return _read_texts(value)
    if any("=" in name for name in value):
        raise _WrongValueError("a table of variables, whose names hold no =")
    try:
        return tuple(f"{name}={_read_quantity(each)}" for name, each in value.items())
    except _WrongValueError as exc:
        raise _WrongValueError("a table of texts and numbers, or a list of KEY=VALUE") from exc


_READERS: Mapping[OptionKind, Callable[[object], Any]] = {
    OptionKind.TEXT: _read_text,
    OptionKind.QUANTITY: _read_quantity,
    OptionKind.NUMBER: _read_number,
    OptionKind.FLAG: _read_flag,
    OptionKind.TEXTS: _read_texts,
    OptionKind.VARIABLES: _read_variables,
    OptionKind.COMMAND: _read_command,
}
