"""What no machine could run, whoever asks for it: refused in one place, where command line, job files and server meet.

It refuses to know GPUs, images and users: the engine asks those.
"""

import os
import re
from collections.abc import Iterator, Sequence

from pgpu.errors import RequestError
from pgpu.model.job import JobSpec, Submission
from pgpu.model.request import Request, SharingWish
from pgpu.model.text import is_bytes, is_text
from pgpu.units import SMALLEST_COMPUTE_SHARE, quoted

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_LONGEST_NAME = 128

_LONGEST_WORD_BYTES = (128 << 10) - 1
"""Linux takes no longer argument or variable (MAX_ARG_STRLEN in execve(2), with the zero at its end)."""


_MOST_BYTES = (2 << 20) - (64 << 10)
"""Of arguments and variables together: what Linux takes with the usual stack of 8 MiB (ARG_MAX in execve(2)), less what
pgpu's launcher adds."""

_OF_EACH_BYTES = 9
"""The zero at its end and the pointer to it."""

_MOST_PRIORITY = 100
_WHOLE_PERCENT = 100


def check_submission(submission: Submission, inherited_bytes: int = 0) -> None:
    """Refuse what no machine could run.

    Args:
        submission: What is asked for.
        inherited_bytes: As `check_inherited` returns it.

    Raises:
        RequestError: An amount, the name or another word is none.
    """
    check_request(submission.request)
    _check_name(submission)
    spec = submission.spec
    if (spec.runtime == "process" and not spec.command) or spec.command[:1] == ("",):
        raise RequestError("there is no command to run", hint="name a program")
    if spec.serves is not None and not (_NAME.fullmatch(spec.serves) and len(spec.serves) <= _LONGEST_NAME):
        raise RequestError(f"{quoted(spec.serves)} is no name of a function", hint="as of jobs: letters, digits, _ . -")
    if spec.is_traced and submission.request.is_without_gpu:
        raise RequestError("a job without a GPU does nothing there that could be traced", hint="leave --gpus 0 out")
    if spec.carve_out_percent is not None and not (spec.is_traced and 0 <= spec.carve_out_percent <= _WHOLE_PERCENT):
        raise RequestError(
            "a carve-out is 0 to 100 %, of a job that is traced", hint="see `pgpu profile --sensitivity`"
        )
    total_bytes = inherited_bytes if spec.runtime == "process" else 0
    for place, word in _words(spec):
        total_bytes += _checked_bytes(spec.runtime, place, word)
    if total_bytes > _MOST_BYTES:
        raise RequestError("arguments and environment are longer than 2 MiB together", hint="put them into a file")


def check_environment(environment: Sequence[tuple[str, str]]) -> int:
    """Refuse an asker's own environment that no process could have.

    Returns:
        What the kernel counts it as, in bytes.

    Raises:
        RequestError: It has such a variable.
    """
    for name, _ in environment:
        if "=" in name:
            raise RequestError(f"{name[:40]!r} is no name of a variable", hint="letters, digits and _")
    return sum(_checked_bytes("process", "a variable of yours", f"{name}={value}") for name, value in environment)


def check_request(request: Request) -> None:
    """Refuse amounts that are none, and words that do not go together.

    Raises:
        RequestError: One of them is such.
    """
    if abs(request.priority) > _MOST_PRIORITY:
        raise RequestError(f"{request.priority} is no priority", hint=f"-{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    if request.is_without_gpu:
        _check_without_gpu(request)
        return
    is_amount = request.memory_bytes > 0 or (request.is_estimated and request.memory_bytes == 0)
    if not is_amount or request.gpu_count < 0:
        raise RequestError("a request is for at least one byte on at least one GPU, or for no GPU")
    _check_share(request)


def _check_without_gpu(request: Request) -> None:
    """Refuse every word about GPUs: it would be left out without a word of ours."""
    if request != Request(0, 0, priority=request.priority):
        raise RequestError(
            "a job without a GPU has no memory and no time of one",
            hint="leave --gpus 0 out, or --memory and what else is about GPUs",
        )


def _check_share(request: Request) -> None:
    share, sharing = request.compute_share, request.sharing
    if share is not None and not SMALLEST_COMPUTE_SHARE <= share <= 1:
        raise RequestError(f"{share:g} is no share of a GPU's time", hint="0.01 to 1")
    if share is None and request.is_strict:
        raise RequestError("--strict needs a share that it holds to", hint="add --compute 30%, or leave --strict out")
    if sharing is SharingWish.EXCLUSIVE and share is not None:
        raise RequestError(
            "a job that has its GPUs alone has all of their time", hint="leave --compute or --sharing out"
        )
    if sharing is SharingWish.EXCLUSIVE and request.oversubscribes:
        raise RequestError(
            "a job that has its GPUs alone has nobody to move its memory for",
            hint="leave --oversubscribe or --sharing out",
        )
    if request.measures and sharing is not SharingWish.MPS:
        raise RequestError("only a job under MPS can be measured beside an antagonist")
    if sharing is SharingWish.MPS and request.gpu_count > 1:
        raise RequestError("MPS is for jobs on one GPU", hint="leave --gpus or --sharing out")


def _check_name(submission: Submission) -> None:
    """A container's name is Docker's too, which wants two characters; an array's has its largest index behind it."""
    name, array = submission.spec.name, submission.array
    if name is None:
        return
    if not _NAME.fullmatch(name):
        raise RequestError(f"{quoted(name)} is no name", hint="letters and digits of ASCII, and _ . - after the first")
    longest = len(name) if array is None else len(f"{name}-{max(array.indices, default=0)}")
    if longest > _LONGEST_NAME:
        raise RequestError(
            f"the name {quoted(name)} is too long", hint=f"at most {_LONGEST_NAME} characters, index included"
        )
    if len(name) == 1 and array is None and submission.spec.runtime == "docker":
        raise RequestError(f"{name!r} is no name of a container", hint="Docker wants at least two characters")


def _words(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield each word that somebody else than pgpu takes, and what it is."""
    yield from (("an argument", word) for word in spec.command)
    for name, value in spec.environment:
        if not name or "=" in name:
            raise RequestError(f"{name!r} is no name of a variable", hint="letters, digits and _")
        yield "a variable", f"{name}={value}"
    for mount in spec.volumes:
        yield "a volume", f"{mount.source}:{mount.target}:{mount.options}"
    named = {"the image": spec.image, "the user": spec.user, "the working directory": spec.working_directory}
    yield from ((place, word) for place, word in named.items() if word is not None)


def _checked_bytes(runtime: str, place: str, word: str) -> int:
    """Return what the kernel counts a word as. A process may be given any bytes; a container engine takes text alone."""
    if not is_bytes(word):
        raise RequestError(f"{place} holds a zero byte, or half of a character: {word[:40]!r}")
    if runtime != "process" and not is_text(word):
        raise RequestError(f"{place} of a container must be UTF-8: {word[:40]!r}")
    size_bytes = len(os.fsencode(word))
    if size_bytes > _LONGEST_WORD_BYTES:
        raise RequestError(f"{place} is longer than 128 KiB: {word[:40]!r}", hint="put it into a file")
    return size_bytes + _OF_EACH_BYTES
