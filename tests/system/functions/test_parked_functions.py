"""GPU functions that are parked, with a real engine: what was in a worker's memory is there again."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.system.functions.gateways import free_port
from tests.system.functions.replicas import JSON, Connection, answer_of
from tests.system.functions.test_control_planes import deploy_as
from tests.waiting import until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions
from pgpu.model import Job, JobSpec, JobState, Request
from pgpu.units import GIB

pytestmark = pytest.mark.userns


REAL = pytest.param("", marks=pytest.mark.gpu, id="real")


@pytest.fixture(scope="module", params=["RTX 3090", REAL])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """Serve functions of which two do not fit onto the GPU together."""
    memory = "16GiB" if request.param else f"{largest_gpu_bytes() * 6 // 10}"
    root = Path(tempfile.mkdtemp(prefix="pgpu-k-", dir="/dev/shm"))
    with serving(root, "--gateway", f"127.0.0.1:{free_port()}", simulate=request.param) as made:
        functions = open_functions(Settings(host=made.host))
        assert isinstance(functions, HttpFunctions)
        for name, mib, words in (
            ("idle", 100, {"scale_to_zero_after": 1}),
            ("one", 100, {}),
            ("two", 100, {}),
            ("large", 9000, {}),
        ):
            deploy_as(functions, name, "handlers.py:OnGpu", memory=memory, arguments={"mib": mib}, **words)
        until((root / "functions.sock").exists)
        yield made
        for name in ("idle", "one", "two", "large"):
            functions.undeploy(name)
    clear(root)


def largest_gpu_bytes() -> int:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return max(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)


def call(server: ServerProcess, name: str) -> dict[str, int]:
    connection = Connection(server.socket.with_name("functions.sock"))
    connection.request("POST", f"/functions/{name}", json.dumps({"x": 1}), JSON)
    answer = answer_of(connection)
    connection.close()
    assert answer.status == 200, answer.body
    return dict(answer.value)


def jobs_of(server: ServerProcess, name: str) -> list[Job]:
    jobs = [report.job for report in open_client(Settings(host=server.host)).jobs(include_final=False)]
    return [job for job in jobs if job.spec.serves == name]


def job_of(server: ServerProcess, name: str) -> Job:
    [job] = jobs_of(server, name)
    return job


def until_parked(server: ServerProcess, name: str) -> None:
    until(lambda: job_of(server, name).parked_at_seconds is not None)


def test_a_worker_that_was_parked_with_nobody_in_a_hurry_has_all_that_it_had(server: ServerProcess) -> None:
    before = call(server, "idle")
    until_parked(server, "idle")
    call(server, "one")  # in its place
    assert call(server, "idle") == {"pid": before["pid"], "calls": 2, "seen": 2}


def test_functions_that_do_not_fit_together_take_turns_in_the_same_replicas(server: ServerProcess) -> None:
    names = ("one", "two", "large")
    jobs = {}
    for name in names:
        call(server, name)
        jobs[name] = job_of(server, name).id
    for name in names:
        answer = call(server, name)
        assert answer["seen"] == answer["calls"]
    assert jobs == {name: job_of(server, name).id for name in names}


def test_what_is_too_large_to_be_moved_in_time_is_loaded_again(server: ServerProcess) -> None:
    before = call(server, "large")
    call(server, "one")
    until_parked(server, "large")
    after = call(server, "large")
    assert after["calls"] == 1
    assert after["pid"] != before["pid"]


@pytest.fixture
def two_gpus() -> Iterator[ServerProcess]:
    root = Path(tempfile.mkdtemp(prefix="pgpu-k-", dir="/dev/shm"))
    with serving(root, "--gateway", f"127.0.0.1:{free_port()}", simulate="RTX 3090x2") as made:
        functions = open_functions(Settings(host=made.host))
        assert isinstance(functions, HttpFunctions)
        deploy_as(functions, "idle", "handlers.py:OnGpu", memory="16GiB", arguments={"mib": 100}, scale_to_zero_after=1)
        until((root / "functions.sock").exists)
        yield made
        functions.undeploy("idle")
        client = open_client(Settings(host=made.host))
        for report in client.jobs(include_final=False):
            client.stop(report.job.id, grace_seconds=0.0)
    clear(root)


def test_where_its_own_gpu_is_full_and_another_is_not_a_replica_starts_there(two_gpus: ServerProcess) -> None:
    client = open_client(Settings(host=two_gpus.host))
    call(two_gpus, "idle")
    until_parked(two_gpus, "idle")
    before = job_of(two_gpus, "idle")

    def gpu_of(job: Job) -> str | None:
        lease = client.job(job.id).job.lease
        return None if lease is None else lease.slices[0].gpu_uuid

    spec = JobSpec(("sleep", "600"), "process", working_directory="/")
    jobs = [client.submit(spec, Request(16 * GIB), wait_timeout_seconds=None) for _ in range(2)]
    until(lambda: all(client.job(job.id).job.state is JobState.RUNNING for job in jobs))
    [elsewhere] = [job for job in jobs if gpu_of(job) != gpu_of(before)]
    client.stop(elsewhere.id, grace_seconds=0.0)
    until(lambda: client.job(elsewhere.id).job.state.is_final)
    assert call(two_gpus, "idle")["calls"] == 1
    assert any(job.id != before.id for job in jobs_of(two_gpus, "idle"))  # the one that is parked may still be leaving
