"""What an API server or the way to it says becomes pgpu's own errors, and is asked again where that may help."""

from collections.abc import Callable, Iterator

import httpx2 as httpx
import msgspec
import pytest
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.meta_v1 import Status

from pgpu.errors import (
    ClusterAccessError,
    ClusterError,
    ClusterUnavailableError,
    HistoryGoneError,
    ObjectConflictError,
    ObjectNotFoundError,
    ObjectRefusedError,
)
from pgpu.kubernetes.api.api_connection import LONGEST_PAUSE_SECONDS, TRIES, request_once, request_with_retries
from pgpu.kubernetes.api.resources import quantity_of, whole_number

SECRET = "eyJhbGciOiJSUzI1NiJ9.secret"
REQUEST = httpx.Request("GET", "https://10.0.0.1/api", headers={"Authorization": f"Bearer {SECRET}"})


def answered(code: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    body = {"message": "no such luck", "code": code, "status": "Failure"}
    return ApiError(request=REQUEST, response=httpx.Response(code, json=body, headers=headers, request=REQUEST))


def failing(*errors: Exception) -> Callable[[], str]:
    waiting: Iterator[Exception] = iter(errors)

    def question() -> str:
        error = next(waiting, None)
        if error is not None:
            raise error
        return "answer"

    return question


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, ObjectRefusedError),
        (401, ClusterAccessError),
        (403, ClusterAccessError),
        (404, ObjectNotFoundError),
        (409, ObjectConflictError),
        (410, HistoryGoneError),
        (418, ClusterError),
        (422, ObjectRefusedError),
        (429, ClusterUnavailableError),
        (500, ClusterUnavailableError),
        (503, ClusterUnavailableError),
    ],
)
def test_an_answer_becomes_our_error(code: int, kind: type[ClusterError]) -> None:
    with pytest.raises(kind, match="no such luck") as caught:
        request_once(failing(answered(code)))

    assert SECRET not in f"{caught.value} {caught.value.hint}"
    plain = httpx.HTTPStatusError("bad", request=REQUEST, response=httpx.Response(code, text="<html>", request=REQUEST))
    with pytest.raises(kind):
        request_once(failing(plain))


def test_a_watchs_error_has_no_response_and_is_understood() -> None:
    status = msgspec.convert({"code": 410, "message": "too old"}, Status)

    with pytest.raises(HistoryGoneError, match="too old"):
        request_once(failing(ApiError(status=status)))


def test_every_foreign_error_is_mapped() -> None:
    kinds = [*every(httpx.TransportError), httpx.DecodingError, httpx.TooManyRedirects]
    errors: list[Exception] = [kind("broken") for kind in kinds]
    errors += [ConfigError("x"), FileNotFoundError("aws"), ValueError("no JSON"), msgspec.ValidationError("odd")]
    errors += [httpx.InvalidURL("x"), KeyError("status")]

    for error in errors:
        with pytest.raises(ClusterError) as caught:
            request_once(failing(error))
        assert caught.value.__cause__ is error


def every(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every(below)


@pytest.mark.parametrize(
    "error", [answered(429), answered(503), httpx.ConnectError("refused"), httpx.ReadTimeout("slow")]
)
def test_what_may_pass_is_asked_again_after_growing_pauses(error: Exception) -> None:
    pauses: list[float] = []

    assert request_with_retries(failing(*[error] * (TRIES - 1)), note(pauses)) == "answer"

    assert len(pauses) == TRIES - 1
    assert pauses[0] < pauses[-1] <= LONGEST_PAUSE_SECONDS
    with pytest.raises(ClusterUnavailableError):
        request_with_retries(failing(*[error] * TRIES), note(pauses))


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 422])
def test_what_will_not_pass_is_asked_once(code: int) -> None:
    pauses: list[float] = []

    with pytest.raises(ClusterError):
        request_with_retries(failing(answered(code)), note(pauses))

    assert pauses == []


def test_a_server_that_says_when_is_asked_then_and_no_later_than_we_wait() -> None:
    pauses: list[float] = []

    request_with_retries(
        failing(answered(429, {"Retry-After": "3"}), answered(429, {"Retry-After": "999"})), note(pauses)
    )

    assert pauses == [3.0, LONGEST_PAUSE_SECONDS]


def test_who_ends_meanwhile_asks_no_more() -> None:
    with pytest.raises(ClusterUnavailableError):
        request_with_retries(failing(answered(503)), lambda _: True)


def note(pauses: list[float]) -> Callable[[float], bool]:
    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    return pause


@pytest.mark.parametrize(
    ("text", "number"),
    [("30Gi", 30 << 30), ("256Mi", 256 << 20), ("0", 0), ("100", 100), ("500m", 1), ("1k", 1000), ("1e3", 1000)],
)
def test_quantities_are_read(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "abc", "3 Gi", "Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="no quantity"):
        whole_number(text)


@pytest.mark.parametrize(("number", "text"), [(80 << 30, "80Gi"), (1536 << 20, "1536Mi"), (0, "0"), (100, "100")])
def test_quantities_are_written_as_the_server_writes_them(number: int, text: str) -> None:
    assert quantity_of(number) == text
