"""What a process cannot have of its asker is refused before anything is stored."""

from typing import Any

import pytest

from pgpu.errors import RequestError
from pgpu.model import JobSpec, Request, Submission
from pgpu.model.validation import check_environment, check_submission


def submission(*command: str, runtime: str = "process", **request: Any) -> Submission:
    spec = JobSpec(command, runtime, "img" if runtime == "docker" else None)  # type: ignore[arg-type] # a word of it
    return Submission(spec, Request(1, **request))


@pytest.mark.parametrize(
    ("name", "value"), [("A=", "b"), ("A", "\0"), ("\0", "b"), ("A", "\ud800"), ("A", "x" * (128 << 10))]
)
def test_a_variable_that_no_process_can_have_is_refused(name: str, value: str) -> None:
    with pytest.raises(RequestError, match="variable"):
        check_environment([(name, value)])


def test_bytes_that_are_no_text_are_an_environment_and_count_as_bytes() -> None:
    assert check_environment([("A", b"\xff".decode(errors="surrogateescape"))]) == len(b"A=\xff\0") + 8


def test_arguments_and_environment_are_bounded_together_and_an_array_of_them_each() -> None:
    half = ["x" * 100_000] * 12
    inherited_bytes = check_environment([(f"A{number}", "x" * 100_000) for number in range(12)])
    check_submission(submission("true", *half))
    check_submission(submission("true"), inherited_bytes)
    check_submission(submission("true", *half, runtime="docker"), inherited_bytes)
    with pytest.raises(RequestError, match="together"):
        check_submission(submission("true", *half), inherited_bytes)


@pytest.mark.parametrize(
    "request_words",
    [
        {"compute_share": 1.5},
        {"compute_share": 0.0},
        {"compute_share": float("nan")},
        {"is_strict": True},
        {"priority": 101},
        {"priority": -101},
    ],
)
def test_what_does_not_bind_or_is_no_priority_is_refused(request_words: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        check_submission(submission("true", **request_words))
