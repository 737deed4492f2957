"""What a server promises of functions, asked over its socket; without a server everything is refused."""

import http.client
import io
import json
import os
import signal
import socket
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.waiting import until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import FunctionNotFoundError, RequestError
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.ledger import Ledger
from pgpu.model import ColdStart, Deployment, Function, JobState, ReplicaState, VersionState
from pgpu.services.messages import Bearer, Judgement, ReplicaAsk, Rollout, Shown
from pgpu.structs import replace

APP = """
class Doubler:
    def __call__(self, x: int) -> int:
        return 2 * x
"""


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    yield path
    clear(path)


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[ServerProcess]:
    with serving(root, "--gateway", "none") as made:
        yield made


@pytest.fixture(scope="module")
def functions(server: ServerProcess) -> HttpFunctions:
    return open_functions(Settings(host=server.host))


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Deployment, io.BytesIO]:
    (tmp_path / "app.py").write_text(APP)
    bundle = io.BytesIO()
    packed = pack_tree(tmp_path, bundle)
    bundle.seek(0)
    return Deployment(f"f{os.urandom(4).hex()}", "app.py:Doubler", packed.digest), bundle


def shares(function: Function) -> list[tuple[int, int]]:
    return [(share.version, share.percent) for share in function.traffic]


def test_without_a_server_there_are_no_functions(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="served by a server") as refusal:
        open_functions(Settings(host="embedded", state_dir=tmp_path))
    assert "pgpu function dev" in str(refusal.value.hint)


def test_versions_traffic_and_tokens_from_deploy_to_undeploy(
    functions: HttpFunctions, asked: tuple[Deployment, io.BytesIO]
) -> None:
    deployment, bundle = asked
    name = deployment.function
    first = functions.deploy(replace(deployment, declaration='{"timeout": "30s", "queue_limit": 100}'), bundle)
    assert (first.number, first.state, json.loads(first.declaration)) == (1, VersionState.READY, {"timeout": 30.0})
    functions.deploy(deployment, io.BytesIO(b"not read, for it is there"))
    assert shares(functions.function(name)) == [(2, 100)]
    assert shares(functions.roll_out(name, Rollout(1, 10))) == [(2, 90), (1, 10)]
    assert shares(functions.roll_back(name)) == [(2, 100)]
    assert name in {each.name for each in functions.functions()}

    token = functions.create_token(name, "Üla's phone")
    assert [(each.id, each.label) for each in functions.tokens(name)] == [(token.id, "Üla's phone")]
    assert functions.bearer(Shown(token.text)) == Bearer(functions.function(name).identity)
    for wrong in (token.text[:-1], "pgpufn_x_y", f"pgpu_{token.id}_x", "ü", ""):
        assert functions.bearer(Shown(wrong)) == Bearer()
    functions.revoke_token(name, token.id)
    assert functions.bearer(Shown(token.text)) == Bearer()

    functions.deploy(replace(deployment, function=f"{name}-kept"), bundle)
    assert functions.undeploy(name) == ()
    with pytest.raises(FunctionNotFoundError):
        functions.function(name)
    functions.undeploy(f"{name}-kept")


def test_what_can_never_be_served_is_refused_when_it_is_deployed(
    functions: HttpFunctions, asked: tuple[Deployment, io.BytesIO]
) -> None:
    deployment, bundle = asked
    wrong = (
        {"declaration": '{"memory": "900GiB"}'},
        {"declaration": '{"memori": "1GiB"}'},
        {"declaration": "[]"},
        {"app": "../../x.py:X"},
        {"app": "--help"},
        {"function": "Big Name"},
        {"runtime": "docker"},
        {"image": "python:3.12"},
    )
    for words in wrong:
        bundle.seek(0)
        with pytest.raises(RequestError):
            functions.deploy(replace(deployment, **words), bundle)  # type: ignore[arg-type] # each word is its field's
    with pytest.raises(RequestError, match="SHA-256"):
        functions.deploy(replace(deployment, bundle="0" * 64), bundle)
    with pytest.raises(FunctionNotFoundError):
        functions.function(deployment.function)


def test_a_replica_is_a_job_of_the_owner_that_answers_on_its_socket(
    functions: HttpFunctions, server: ServerProcess, asked: tuple[Deployment, io.BytesIO]
) -> None:
    version = functions.deploy(*asked)
    replica = functions.start_replica(ReplicaAsk(version.function, 1))
    client = open_client(Settings(host=server.host))
    until((Path(replica.socket_directory) / "http.sock").exists, lambda: said(client, replica.job_id))
    until(lambda: ask(replica.socket_directory, "GET", "/readyz")[0] == 200, lambda: said(client, replica.job_id))
    assert ask(replica.socket_directory, "POST", "/", b'{"x": 21}') == (200, b"42")

    job = client.job(replica.job_id).job
    assert (job.owner_uid, job.spec.serves, job.state) == (os.geteuid(), version.function, JobState.RUNNING)
    functions.note_replica(replica.job_id, ReplicaState.HOT)
    assert (
        functions.all_replicas() == functions.replicas(version.function) == (replace(replica, state=ReplicaState.HOT),)
    )
    start = ColdStart(version.function, 1, replica.job_id, 5.0, (("grant", 0.1), ("imports", 0.2)))
    functions.note_cold_start(start.function, start)
    assert functions.cold_starts(version.function) == (start,)

    assert functions.undeploy(version.function) == (replica.job_id,)
    until(lambda: client.job(replica.job_id).job.state.is_final)
    assert not Path(replica.socket_directory).exists()
    with pytest.raises(FunctionNotFoundError):
        functions.start_replica(ReplicaAsk(version.function, 1))


def test_a_gpu_function_that_says_no_memory_gets_what_a_job_would(
    functions: HttpFunctions, server: ServerProcess, asked: tuple[Deployment, io.BytesIO]
) -> None:
    deployment, bundle = asked
    declared = '{"gpus": 1, "compute": "25%"}'
    version = functions.deploy(replace(deployment, declaration=declared), bundle)
    replica = functions.start_replica(ReplicaAsk(version.function, 1))
    request = open_client(Settings(host=server.host)).job(replica.job_id).job.request
    assert (request.is_estimated, request.gpu_count, request.compute_share) == (True, 1, 0.25)
    assert request.memory_bytes > 0
    functions.undeploy(version.function)


def said(client: Any, job_id: str) -> str:
    return str([client.job(job_id).job.error, *client.logs(job_id, follow=False)])


def ask(directory: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(f"{directory}/http.sock")
        connection.sock = ours
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_version_waits_for_its_packages_and_is_judged(
    functions: HttpFunctions, asked: tuple[Deployment, io.BytesIO]
) -> None:
    deployment, bundle = asked
    version = functions.deploy(replace(deployment, requirements=f"# {os.urandom(4).hex()}"), bundle)
    assert version.state is VersionState.PENDING
    with pytest.raises(RequestError, match="pending"):
        functions.start_replica(ReplicaAsk(version.function, 1))
    with pytest.raises(RequestError, match="not installed"):
        functions.judge(version.function, Judgement(1, VersionState.READY))
    functions.judge(version.function, Judgement(1, VersionState.FAILED, "pip said no"))
    found = functions.function(version.function)
    assert (found.versions[0].state, found.versions[0].reason) == (VersionState.FAILED, "pip said no")
    with pytest.raises(RequestError, match="pip said no"):
        functions.roll_out(version.function, Rollout(1))
    with pytest.raises(RequestError, match="failed already"):
        functions.build(ReplicaAsk(version.function, 1))


def test_packages_are_installed_once_for_all_versions_with_one_lock_file(
    functions: HttpFunctions, server: ServerProcess, asked: tuple[Deployment, io.BytesIO], tmp_path: Path
) -> None:
    deployment, bundle = asked
    wheel = wheel_of(tmp_path / "wheels", "pgputhere")
    deployment = replace(deployment, requirements=f"{wheel}\n")
    version = functions.deploy(deployment, bundle)
    job = functions.build(ReplicaAsk(version.function, 1))
    client = open_client(Settings(host=server.host))
    assert client.wait(job.id).exit_code == 0, said(client, job.id)
    functions.judge(version.function, Judgement(1, VersionState.READY))
    assert functions.deploy(deployment, bundle).state is VersionState.READY
    replica = functions.start_replica(ReplicaAsk(version.function, 2))
    environment = dict(client.job(replica.job_id).job.spec.environment)
    assert (Path(environment["PYTHONPATH"]) / "pgputhere.py").read_text() == "x = 1"
    functions.undeploy(version.function)


def test_packages_are_installed_by_one_job_at_a_time_that_ends_with_its_function(
    functions: HttpFunctions, server: ServerProcess, asked: tuple[Deployment, io.BytesIO]
) -> None:
    deployment, bundle = asked
    client = open_client(Settings(host=server.host))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lock = f"--index-url http://127.0.0.1:{silent.getsockname()[1]}/\nnothing\n"
        version = functions.deploy(replace(deployment, requirements=lock), bundle)
        job = functions.build(ReplicaAsk(version.function, 1))
        assert functions.build(ReplicaAsk(version.function, 1)).id == job.id
        until(lambda: client.job(job.id).job.state is JobState.RUNNING)
        functions.undeploy(version.function)
        assert client.wait(job.id).state.is_final
        again = functions.deploy(replace(deployment, requirements=lock), bundle)
        other = functions.build(ReplicaAsk(again.function, 1))
        assert other.id != job.id
        assert client.job(other.id).job.spec.serves == again.function
        functions.undeploy(again.function)
        assert client.wait(other.id).state.is_final


def wheel_of(directory: Path, name: str, more: Mapping[str, str] | None = None) -> Path:
    """Write the smallest wheel that pip takes, so that nothing is fetched; `more` are files beside its module."""
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-1-py3-none-any.whl"
    information = f"{name}-1.dist-info"
    files = {
        f"{name}.py": "x = 1",
        **(more or {}),
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def test_what_was_accepted_outlives_the_server_and_what_was_not_is_nowhere(
    functions: HttpFunctions, server: ServerProcess, root: Path, asked: tuple[Deployment, io.BytesIO]
) -> None:
    version = functions.deploy(*asked)
    replica = functions.start_replica(ReplicaAsk(version.function, 1))
    half_gone = functions.deploy(replace(asked[0], function=f"{version.function}-gone"), asked[1]).function
    orphan = functions.start_replica(ReplicaAsk(half_gone, 1))
    shelf = root / "state" / "functions" / "bundles" / str(os.geteuid())
    kept = set(shelf.iterdir())
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(str(server.socket))
        half.sendall(f"PUT /v1/bundles/{'0' * 64} HTTP/1.1\r\nHost: pgpu\r\nContent-Length: 9000\r\n\r\n".encode())
        half.sendall(b"x" * 4000)
        server.end(signal.SIGKILL)
    ledger = Ledger(root / "state" / "ledger.db")
    ledger.functions.remove(half_gone)  # as a server does that is killed in the middle of it
    ledger.close()
    server.start()
    client = open_client(Settings(host=server.host))
    until(lambda: client.job(orphan.job_id).job.state.is_final)
    assert not Path(orphan.socket_directory).exists()
    assert not client.job(replica.job_id).job.state.is_final
    assert functions.function(version.function).versions == (version,)
    assert [each.job_id for each in functions.replicas(version.function)] == [replica.job_id]
    assert set(shelf.iterdir()) == kept
    functions.undeploy(version.function)
