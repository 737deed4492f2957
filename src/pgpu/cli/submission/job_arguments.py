"""Read what `pgpu run` was given into a request and a job, or say in one line what is wrong with it."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.model import Array, JobSpec, Mount, Request, Resize, SharingWish
from pgpu.model.job import MOST_ELEMENTS
from pgpu.model.validation import check_request
from pgpu.units import parse_compute_share, parse_duration_seconds, parse_memory_bytes, quoted

AUTO = "auto"
"""The amount of memory that pgpu chooses by what earlier runs held."""

NO_SHARE = "none"
"""The share of a job that is to have none."""

MOST_PRIORITY = 100
PRIORITIES = {"low": -50, "normal": 0, "high": 50}
_PRIORITY_HINT = "write low, normal, high, or a number from -100 to 100"
_ARRAY_HINT = "write it like 0-9, 0-9:2, 1,3,7 or 0-99%4"
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ComputeArguments:
    """What was typed of how a job shares its GPUs with others."""

    share: str | None
    sharing: SharingWish
    is_strict: bool
    oversubscribes: bool
    preempts: bool

    def of(self, request: Request) -> Request:
        """Return a request with all of it; without a GPU the mode is left out, which the settings may have said.

        Raises:
            RequestError: The share cannot be read.
        """
        return replace(
            request,
            compute_share=None if self.share is None else parse_compute_share(self.share),
            is_strict=self.is_strict,
            sharing=self.sharing if request.gpu_count else SharingWish.TIME_SLICE,
            oversubscribes=self.oversubscribes,
            preempts=self.preempts,
        )


def read_job(
    *,
    command: tuple[str, ...],
    memory: str | None,
    gpu_count: int,
    compute: ComputeArguments,
    priority: str,
    retries_out_of_memory: bool = False,
    image: str | None,
    environment_words: Sequence[str],
    environment_files: Sequence[str],
    volume_words: Sequence[str],
    working_directory: str | None,
    user: str | None,
    name: str | None,
    wants_tty: bool,
    wants_stdin: bool,
    is_detached: bool,
    remove: bool,
    wait_for_memory: str,
) -> tuple[JobSpec, Request]:
    """Read the words of `pgpu run`.

    Raises:
        RequestError: Something is missing, unreadable, or does not go together.
    """
    request = replace(
        compute.of(read_request(memory, gpu_count)),
        priority=read_priority(priority),
        retries_out_of_memory=retries_out_of_memory,
    )
    check_request(request)
    if image is None:
        _refuse_container_words(command, volume_words, user)
    if wants_tty and wants_stdin and not is_detached and not sys.stdin.isatty():
        raise RequestError("--tty with --interactive needs a terminal on stdin", hint="leave --tty out in a pipe")
    spec = JobSpec(
        command=command,
        runtime="docker" if image is not None else "process",
        image=image,
        environment=tuple(_environment(environment_files, environment_words)),
        volumes=tuple(_mount(word) for word in volume_words),
        working_directory=_working_directory(working_directory, image),
        user=user,
        name=name,
        wants_tty=wants_tty,
        wants_stdin=wants_stdin,
        remove=remove,
        wait_for_memory_seconds=parse_duration_seconds(wait_for_memory),
    )
    return spec, request


def read_request(memory: str | None, gpu_count: int) -> Request:
    """Read an amount of memory and a number of GPUs, 0 for none.

    Raises:
        RequestError: No amount, an unreadable one, or one of no GPU.
    """
    if gpu_count < 0:
        raise RequestError(f"--gpus {gpu_count} is no number of GPUs", hint="leave --gpus out for one")
    if gpu_count == 0 and memory in {None, AUTO}:
        return Request(0, 0)
    if gpu_count == 0:
        raise RequestError("--memory is about a GPU, and --gpus 0 asks for none", hint="leave one of them out")
    if memory is None:
        raise RequestError(
            "--memory is missing",
            hint="say how much GPU memory the job may hold: --memory 2GiB, or --memory auto; --gpus 0 for none",
        )
    if memory == AUTO:
        return Request(0, gpu_count, is_estimated=True)
    return Request(parse_memory_bytes(memory), gpu_count)


def read_resize(memory: str | None, compute: str | None, *, is_strict: bool | None) -> Resize:
    """Read what of a job is to change.

    Raises:
        RequestError: Nothing is, or an amount is unreadable.
    """
    if memory is None and compute is None and is_strict is None:
        raise RequestError("nothing is to change", hint="say what: --memory 2GiB, --compute 50%, --strict or --fair")
    share = parse_compute_share(compute) if compute not in {None, NO_SHARE} else None
    return Resize(
        None if memory is None else parse_memory_bytes(memory), 0.0 if compute == NO_SHARE else share, is_strict
    )


def read_priority(text: str) -> int:
    """Read a class of priority, or a number.

    Raises:
        RequestError: It is neither.
    """
    if text in PRIORITIES:
        return PRIORITIES[text]
    digits = text.removeprefix("-").removeprefix("+")
    if not _is_number(digits) or int(digits) > MOST_PRIORITY:
        raise RequestError(f"--priority {quoted(text)} is none", hint=_PRIORITY_HINT)
    return int(text)


def read_array(text: str) -> Array:
    """Read `0-9`, `0-9:2`, `1,3,7` or a list of these, with `%N` behind it for at most N at a time.

    Raises:
        RequestError: It is none of these, or names too many.
    """
    words, percent, most = text.partition("%")
    if percent and not _is_number(most):
        raise RequestError(f"--array {quoted(text)}: what follows % is no number", hint=_ARRAY_HINT)
    indices = list(dict.fromkeys(index for word in words.split(",") for index in _indices(word, text)))
    return Array(tuple(indices), int(most) if percent else None)


def _indices(word: str, text: str) -> range:
    span, colon, step = word.partition(":")
    first, dash, last = span.partition("-")
    given = [first, *([last] if dash else []), *([step] if colon else [])]
    if not all(_is_number(number) for number in given) or (colon and (not dash or int(step) < 1)):
        raise RequestError(f"--array {quoted(text)} cannot be read", hint=_ARRAY_HINT)
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


def _refuse_container_words(command: Sequence[str], volume_words: Sequence[str], user: str | None) -> None:
    if not command:
        raise RequestError("there is no command to run", hint="pgpu run --memory 2GiB -- COMMAND")
    if volume_words:
        raise RequestError("--volume needs a container", hint="add --image IMAGE, or leave --volume out")
    if user is not None:
        raise RequestError("--user needs a container", hint="add --image IMAGE, or leave --user out")


def _environment(files: Iterable[str], words: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in files:
        for line in _lines(path):
            yield from _variable(line, f"{path}: {line!r}")
    for word in words:
        yield from _variable(word, f"--env {word!r}")


def _lines(path: str) -> Iterator[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as exc:  # ValueError: no UTF-8, or a path with a zero byte
        raise RequestError(f"--env-file {path} cannot be read: {exc}") from exc
    for line in lines:
        if line.strip() and not line.startswith("#"):
            yield line


def _variable(word: str, place: str) -> Iterator[tuple[str, str]]:
    """Read `KEY=VALUE`, or `KEY` for the asker's own value; an unset one is left out, as Docker does."""
    key, separator, value = word.partition("=")
    if not key or any(character.isspace() for character in key) or "\0" in word:
        raise RequestError(f"{place} is not KEY=VALUE")
    if separator:
        yield key, value
    elif key in os.environ:
        yield key, os.environ[key]


def _mount(word: str) -> Mount:
    source, _, rest = word.partition(":")
    target, _, mount_options = rest.partition(":")
    if not source or not target.startswith("/"):
        raise RequestError(f"--volume {word!r} is not HOST:CONTAINER", hint="write /data:/data or ./data:/data:ro")
    if source.startswith((".", "~")):
        source = str(_absolute(_expanded(source, f"--volume {word!r}")))
    return Mount(source, target, mount_options)


def _working_directory(path: str | None, image: str | None) -> str | None:
    if image is not None:
        return path
    chosen = _absolute(Path(path or "."))
    if not _is_directory(chosen):
        raise RequestError(f"--workdir {path}: there is no such directory")
    return str(chosen)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # who may not look, a name that is too long, a zero byte
        return False


def _expanded(path: str, place: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as exc:
        raise RequestError(f"{place}: {path} is nobody's home") from exc


def _absolute(path: Path) -> Path:
    try:
        return path.absolute()
    except FileNotFoundError as exc:
        raise RequestError("the current directory is gone", hint="change to one that exists") from exc
