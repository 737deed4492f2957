"""Validation of submissions that no machine could run, shared by command line, job files and server.

Checks that depend on GPUs, images or users are the engine's.
"""

import os
import re
from collections.abc import Iterator, Sequence

from pgpu.errors import RequestError
from pgpu.model.job import JobSpec, Submission
from pgpu.model.lease import Request, SharingWish
from pgpu.structs import replace
from pgpu.units import SMALLEST_COMPUTE_SHARE, composed, is_bytes, is_text, quoted

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Letters and marks without a picture of their own (Unicode's Default_Ignorable_Code_Point), as a class of a pattern."""

_LONGEST_NAME = 128

# Longest argument or variable that Linux accepts (MAX_ARG_STRLEN in execve(2), with its terminating zero).
_LONGEST_WORD_BYTES = (128 << 10) - 1


# Most bytes of arguments and variables together: the limit of Linux with the usual stack of 8 MiB (ARG_MAX in execve(2)), less
# what pgpu's launcher adds.
_MOST_BYTES = (2 << 20) - (64 << 10)

# Overhead of each string: its terminating zero and the pointer to it.
_OF_EACH_BYTES = 9

_MOST_PRIORITY = 100
_MOST_MODELS = 16
"""Each decision on the queue compares all of each job's with the GPUs."""

_LONGEST_LIMIT_SECONDS = 10.0 * 365 * 86_400
_LAST_SECONDS = 1e11
"""No clock has a later time; begins of the year 5138 and later are in milliseconds."""

_WHOLE_PERCENT = 100


def check_submission(submission: Submission, inherited_bytes: int = 0) -> None:
    """Refuse a submission that no machine could run.

    Args:
        submission: What is requested.
        inherited_bytes: As `check_environment` returns it.

    Raises:
        RequestError: An amount, a name or another string is invalid.
    """
    check_request(submission.request)
    _check_name(submission)
    _check_times(submission)
    spec = submission.spec
    if spec.is_abridged:
        raise RequestError(
            "the beginning of a command cannot be submitted", hint="read the job by its id: lists abridge long commands"
        )
    if (spec.runtime == "process" and not spec.command) or spec.command[:1] == ("",):
        raise RequestError("there is no command to run", hint="name a program")
    if spec.serves is not None and not (_NAME.fullmatch(spec.serves) and len(spec.serves) <= _LONGEST_NAME):
        raise RequestError(
            f"{quoted(spec.serves)} is not a valid function name", hint="as of jobs: letters, digits, _ . -"
        )
    if spec.notify is not None:
        if not spec.notify.strip():
            raise RequestError("--notify names no command", hint="write it like --notify 'mail -s $PGPU_STATE me'")
        _measure_word("process", "the command of --notify", spec.notify)
    if spec.is_traced and submission.request.is_without_gpu:
        raise RequestError("a job without a GPU cannot be traced", hint="leave --gpus 0 out")
    if spec.carve_out_percent is not None and not (spec.is_traced and 0 <= spec.carve_out_percent <= _WHOLE_PERCENT):
        raise RequestError(
            "a carve-out is 0 to 100 %, of a job that is traced", hint="see `pgpu profile --sensitivity`"
        )
    total_bytes = inherited_bytes if spec.runtime == "process" else 0
    for place, word in _words(spec):
        total_bytes += _measure_word(spec.runtime, place, word)
    if total_bytes > _MOST_BYTES:
        raise RequestError("arguments and environment are longer than 2 MiB together", hint="put them into a file")


def check_environment(environment: Sequence[tuple[str, str]]) -> int:
    """Refuse a client's environment that no process could have.

    Returns:
        Its size in bytes, as the kernel counts it.

    Raises:
        RequestError: A variable is invalid.
    """
    for name, _ in environment:
        if "=" in name:
            raise RequestError(f"{name[:40]!r} is not a valid variable name", hint="letters, digits and _")
    return sum(_measure_word("process", "a variable of yours", f"{name}={value}") for name, value in environment)


def check_request(request: Request) -> None:
    """Refuse invalid amounts, and options that contradict each other.

    Raises:
        RequestError: The request is invalid.
    """
    if abs(request.priority) > _MOST_PRIORITY:
        raise RequestError(f"{request.priority} is not a valid priority", hint=f"-{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    limit_seconds = request.time_limit_seconds
    if limit_seconds is not None and not 0 < limit_seconds <= _LONGEST_LIMIT_SECONDS:
        raise RequestError(f"{limit_seconds:g} seconds are no time limit", hint="above 0, at most ten years")
    if request.is_without_gpu:
        bare = Request(0, 0, priority=request.priority, objective=request.objective)
        if replace(request, time_limit_seconds=None, on_time_limit=bare.on_time_limit) != bare:
            raise RequestError(
                "a job without a GPU has no memory and no time of one",
                hint="leave --gpus 0 out, or --memory and all other options about GPUs",
            )
        return
    if not all(model.strip() and is_text(model) for model in request.gpu_models):
        raise RequestError("--gpu-model names no model", hint="write it like --gpu-model A100")
    if len(request.gpu_models) > _MOST_MODELS or any(len(model) > _LONGEST_NAME for model in request.gpu_models):
        raise RequestError(
            f"a request names at most {_MOST_MODELS} GPU models, of up to {_LONGEST_NAME} characters",
            hint="a part of a name is enough: --gpu-model A100",
        )
    is_amount = request.memory_bytes > 0 or (request.is_estimated and request.memory_bytes == 0)
    if not is_amount or request.gpu_count < 0:
        raise RequestError("a request is for at least one byte on at least one GPU, or for no GPU")
    _check_share(request)


def _check_share(request: Request) -> None:
    share, sharing = request.compute_share, request.sharing
    if share is not None and not SMALLEST_COMPUTE_SHARE <= share <= 1:
        raise RequestError(f"{share:g} is not a valid share of a GPU's time", hint="0.01 to 1")
    if share is None and request.is_strict:
        raise RequestError("--strict needs a share that it holds to", hint="add --compute 30%, or leave --strict out")
    if sharing is SharingWish.EXCLUSIVE and share is not None:
        raise RequestError(
            "a job that has its GPUs alone has all of their time", hint="leave --compute or --sharing out"
        )
    if sharing is SharingWish.EXCLUSIVE and request.oversubscribes:
        raise RequestError(
            "a job that has its GPUs alone has no other job to move its memory for",
            hint="leave --oversubscribe or --sharing out",
        )
    if request.measures and sharing is not SharingWish.MPS:
        raise RequestError("only a job under MPS can be measured beside an antagonist")
    if sharing is SharingWish.MPS and request.gpu_count > 1:
        raise RequestError("MPS is for jobs on one GPU", hint="leave --gpus or --sharing out")


def _check_name(submission: Submission) -> None:
    # The name of an array gets an index appended, and Docker requires two characters for a container.
    name, array = submission.spec.name, submission.array
    if name is None:
        return
    if not _is_name(name):
        raise RequestError(
            f"{quoted(name)} is not a valid name", hint="letters and digits of any script, and _ . - after the first"
        )
    if name != composed(name):
        raise RequestError(f"{quoted(name)} is not in Unicode's composed form", hint="normalise it to NFC")
    longest = len(name) if array is None else len(f"{name}-{max(array.indices, default=0)}")
    if longest > _LONGEST_NAME:
        raise RequestError(
            f"the name {quoted(name)} is too long", hint=f"at most {_LONGEST_NAME} characters, index included"
        )
    if len(name) == 1 and array is None and submission.spec.runtime == "docker":
        raise RequestError(f"{name!r} is not a valid container name", hint="Docker requires at least two characters")


def _check_times(submission: Submission) -> None:
    spec, begin_at_seconds = submission.spec, submission.begin_at_seconds
    if submission.request.time_limit_seconds is not None and (spec.serves or spec.runtime not in {"process", "docker"}):
        raise RequestError("a time limit is only for jobs of `pgpu run` and `pgpu submit`")
    if begin_at_seconds is not None and not 0 <= begin_at_seconds <= _LAST_SECONDS:
        raise RequestError(f"{begin_at_seconds:g} is no time to begin at", hint="in seconds since the epoch")


def _is_name(name: str) -> bool:
    """Whether a name has letters, digits and marks of any script, and `_ . -` after the first; never what is invisible."""
    if name.isascii():
        return bool(_NAME.fullmatch(name))
    from unicodedata import category  # noqa: PLC0415 - most names are of ASCII

    return (
        name[0].isalnum()
        and all(each.isalnum() or each in "_.-" or category(each).startswith("M") for each in name[1:])
        and re.search(f"[{_INVISIBLE}]", name) is None
    )


def _words(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield each string that is passed to the kernel or a container engine, with a description."""
    yield from (("an argument", word) for word in spec.command)
    for name, value in spec.environment:
        if not name or "=" in name:
            raise RequestError(f"{name!r} is not a valid variable name", hint="letters, digits and _")
        yield "a variable", f"{name}={value}"
    for mount in spec.volumes:
        yield "a volume", f"{mount.source}:{mount.target}:{mount.options}"
    named = {"the image": spec.image, "the user": spec.user, "the working directory": spec.working_directory}
    yield from ((place, word) for place, word in named.items() if word is not None)


def _measure_word(runtime: str, place: str, word: str) -> int:
    # A process accepts any bytes without a zero byte; a container engine accepts UTF-8 only.
    if not is_bytes(word):
        raise RequestError(f"{place} holds a zero byte, or half of a character: {word[:40]!r}")
    if runtime != "process" and not is_text(word):
        raise RequestError(f"{place} of a container must be UTF-8: {word[:40]!r}")
    size_bytes = len(os.fsencode(word))
    if size_bytes > _LONGEST_WORD_BYTES:
        raise RequestError(f"{place} is longer than 128 KiB: {word[:40]!r}", hint="put it into a file")
    return size_bytes + _OF_EACH_BYTES
