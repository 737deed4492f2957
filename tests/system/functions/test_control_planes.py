"""What the gateway is promised by its desk: a server's, and the fake that stands in for it."""

import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.clearing import clear
from tests.fakes.control_plane import FakeControlPlane
from tests.served import serving
from tests.system.functions.gateways import function, version
from tests.system.functions.replicas import Connection
from tests.waiting import until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions
from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.functions.control.control_plane import ControlPlane, HttpControlPlane, ReplicaJob
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.model import ColdStart, Deployment, ReplicaState, Version, VersionState
from pgpu.services.messages import Bearer
from pgpu.structs import replace

NAME = "it"


@dataclass
class World:
    desk: ControlPlane
    token: str
    """Good for the function."""


@pytest.fixture(scope="module", params=["fake", "server"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    root = Path(tempfile.mkdtemp(prefix="pgpu-d-", dir="/dev/shm"))
    if request.param == "fake":
        desk = FakeControlPlane(root)
        two = version(NAME, "Echo", 2, {})
        first = function(NAME, "Echo", gpus=1)
        desk.put(replace(first, versions=(*first.versions, two), traffic=(replace(first.traffic[0], version=2),)))
        desk.allow("good", Bearer(function=first.identity))
        yield World(desk, "good")
        desk.end()
        shutil.rmtree(root)
        return
    with serving(root) as server:
        functions = open_functions(Settings(host=server.host))
        assert isinstance(functions, HttpFunctions)
        for words in ({"memory": "1GiB"}, {}):
            deploy(functions, **words)
        token = functions.create_token(NAME, "a test's").text
        yield World(HttpControlPlane(functions, open_client(Settings(host=server.host))), token)
        functions.undeploy(NAME)
    clear(root)


def deploy(functions: HttpFunctions, **words: object) -> None:
    deploy_as(functions, NAME, "handlers.py:Echo", **words)


def deploy_as(functions: HttpFunctions, name: str, app: str, **words: object) -> None:
    source = Path(tempfile.mkdtemp(prefix="pgpu-src-"))
    shutil.copy(Path(__file__).parent / "handlers.py", source / "handlers.py")
    bundle = io.BytesIO()
    packed = pack_tree(source, bundle)
    bundle.seek(0)
    declaration = json.dumps(dump_declaration(parse_declaration(words)))
    functions.deploy(Deployment(name, app, packed.digest, declaration=declaration), bundle)
    shutil.rmtree(source)


def second(desk: ControlPlane) -> Version:
    return desk.functions()[0].version(2)


def standing(desk: ControlPlane, job_id: str) -> ReplicaJob | None:
    return next((each for each in desk.replica_jobs() if each.job_id == job_id), None)


def health(socket: Path) -> str | None:
    try:
        connection = Connection(socket)
        return str(connection.ask("/healthz").value["state"])
    except OSError:
        return None


def test_a_replica_is_asked_for_offered_claimed_and_ended(world: World) -> None:
    desk = world.desk
    asked = desk.start(second(desk))
    assert (asked.function, asked.version) == (NAME, 2)
    until((asked.directory / "calls.sock").exists)
    until(lambda: (found := standing(desk, asked.job_id)) is not None and found.granted_at_seconds is not None)
    desk.note_state(asked.job_id, ReplicaState.HOT)
    desk.mark_evictable(asked.job_id, 2.5)
    assert desk.reacquire(asked.job_id) is ReacquireResult.KEPT
    assert desk.reacquire(asked.job_id) is ReacquireResult.KEPT
    desk.note_start(ColdStart(NAME, 2, asked.job_id, 0.0, (("grant", 0.1),)))
    desk.stop(asked.job_id)
    assert standing(desk, asked.job_id) is None
    desk.stop(asked.job_id)
    assert desk.reacquire(asked.job_id) is ReacquireResult.LOST


def test_a_replica_is_parked_and_comes_back_when_it_is_claimed(world: World) -> None:
    desk = world.desk
    asked = desk.start(desk.functions()[0].version(1))
    socket = asked.directory / "http.sock"
    until(lambda: health(socket) == "hot")
    desk.park(asked.job_id)
    until(lambda: health(socket) == "parked")
    assert desk.reacquire(asked.job_id) is ReacquireResult.COMING
    until(lambda: health(socket) == "hot")
    assert desk.reacquire(asked.job_id) is ReacquireResult.KEPT
    desk.stop(asked.job_id)


def test_a_token_is_good_for_its_function_alone(world: World) -> None:
    assert world.desk.bearer(world.token) == Bearer(function=world.desk.functions()[0].identity)
    assert world.desk.bearer("made up") == Bearer()


def test_a_version_that_fails_gives_its_traffic_back(world: World) -> None:
    desk = world.desk
    assert [share.version for share in desk.functions()[0].traffic] == [2]
    desk.fail(second(desk), "it does not start")
    known = desk.functions()[0]
    assert [share.version for share in known.traffic] == [1]
    assert (known.version(2).state, known.version(2).reason) == (VersionState.FAILED, "it does not start")
