"""A server that is older than its client: what it would leave out is never left out silently."""

from typing import Any

import pytest

from pgpu.client.http_client import HttpClient
from pgpu.errors import NodeError
from pgpu.model import Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.services import wire
from pgpu.services.messages import Ask, Cancel
from pgpu.structs import replace
from pgpu.units import GIB

SPEC = JobSpec(("true",), "process", working_directory="/")


class OldServer:
    """Takes every request, and knows memory and numbers of GPUs alone."""

    def __init__(self) -> None:
        self.cancelled: tuple[str, ...] = ()

    def ask(self, _method: str, _path: str, value: object = None) -> Any:
        if isinstance(value, Cancel):
            self.cancelled = value.jobs
            return []
        assert isinstance(value, Ask)
        known = [replace(each.request, sharing=SharingWish.TIME_SLICE, preempts=False) for each in value.submissions]
        jobs = [Job(f"{at:012x}", SPEC, request, JobState.WAITING, 0.0) for at, request in enumerate(known)]
        return wire.parse(wire.encode(jobs))


def test_jobs_that_an_older_server_took_without_their_sharing_mode_are_cancelled_and_told_of() -> None:
    server = OldServer()
    client = HttpClient(server)  # type: ignore[arg-type] # what a server answers is all that counts here
    assert len(client.submit_all([Submission(SPEC, Request(GIB))])) == 1
    asked = [Submission(SPEC, Request(GIB)), Submission(SPEC, Request(GIB, sharing=SharingWish.EXCLUSIVE))]
    with pytest.raises(NodeError, match="older than this command"):
        client.submit_all(asked)
    assert len(server.cancelled) == 2


@pytest.mark.parametrize(
    "asked",
    [
        Submission(SPEC, Request(GIB), begin_at_seconds=5e9),
        Submission(SPEC, Request(GIB), is_held=True),
    ],
)
def test_nor_are_jobs_that_it_would_start_at_once_though_they_were_to_wait(asked: Submission) -> None:
    server = OldServer()
    with pytest.raises(NodeError, match="older than this command"):
        HttpClient(server).submit_all([asked])  # type: ignore[arg-type] # likewise
    assert len(server.cancelled) == 1
