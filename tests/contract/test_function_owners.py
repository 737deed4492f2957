"""One user's functions are nobody else's: each route is tried by a stranger, who learns nothing from it."""

import json
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.contract.in_process import AsPeer, asked, make_app

from pgpu.functions.deploy.version_jobs import layer_digest
from pgpu.ledger import Entry
from pgpu.model import Deployment, Job, JobSpec, JobState, Replica, ReplicaState, Request, VersionState
from pgpu.server.peer_credentials import PeerCredentials
from pgpu.services import wire
from pgpu.structs import replace

ALICE, BOB = 61001, 61002
ASKED = Deployment("secretive", "app.py:Hidden", "a" * 64, "{}", "docker", "image-of-alice")
ROUTES = [
    ("GET", "/v1/functions/NAME", None),
    ("DELETE", "/v1/functions/NAME", None),
    ("POST", "/v1/functions/NAME/rollout", {"version": 1}),
    ("POST", "/v1/functions/NAME/rollback", None),
    ("GET", "/v1/functions/NAME/tokens", None),
    ("POST", "/v1/functions/NAME/tokens", None),
    ("DELETE", "/v1/functions/NAME/tokens/t1", None),
    ("GET", "/v1/functions/NAME/replicas", None),
    ("GET", "/v1/functions/NAME/cold-starts", None),
]
OF_THE_GATEWAY = [
    ("POST", "/v1/functions/NAME/judgement", {"version": 1, "state": "failed"}),
    (
        "POST",
        "/v1/functions/NAME/cold-starts",
        {"function": "secretive", "version": 1, "job_id": "x", "at_seconds": 1, "phases": []},
    ),
    ("POST", "/v1/replicas", {"function": "secretive", "version": 1}),
    ("POST", "/v1/builds", {"function": "secretive", "version": 1}),
    ("POST", "/v1/bearers", {"token": "t"}),
    ("GET", "/v1/replicas", None),
    ("PUT", "/v1/replicas/0123456789ab?state=hot", None),
    ("DELETE", "/v1/replicas/0123456789ab", None),
]


@dataclass
class World:
    app: Any

    def ask(self, uid: int, method: str, path: str, body: object = None) -> tuple[int, str]:
        peer = PeerCredentials(1, uid, uid, frozenset())
        data = b"" if body is None else json.dumps(body).encode()
        status, _, text = asked(AsPeer(self.app, peer), method, path, data)
        return status, text.decode()

    @property
    def kept(self) -> Any:
        return self.app.state.engines.own.ledger.functions


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    made = World(make_app(path))
    made.kept.deploy(ASKED, ALICE)
    made.kept.tokens.put("t1", "secretive", "digest", "label-of-alice")
    made.kept.replicas.put(Replica("0123456789ab", "secretive", 1, "/nowhere", ReplicaState.HOT))
    yield made
    clear(path)


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_a_stranger_hears_the_same_of_a_function_and_of_none(
    world: World, method: str, path: str, body: object
) -> None:
    status, text = world.ask(BOB, method, path.replace("NAME", "secretive"), body)
    other, none = world.ask(BOB, method, path.replace("NAME", "not-there"), body)
    assert (status, other) == (404, 404)
    assert text.replace("secretive", "not-there") == none
    assert world.kept.get("secretive").traffic[0].version == 1


@pytest.mark.parametrize(("method", "path", "body"), OF_THE_GATEWAY)
def test_what_is_the_gateway_s_is_no_user_s_not_even_the_owner_s(
    world: World, method: str, path: str, body: object
) -> None:
    before = (world.kept.all(), world.kept.replicas.all(), world.kept.replicas.starts("secretive", 9))
    for uid in (ALICE, BOB):
        status, text = world.ask(uid, method, path.replace("NAME", "secretive"), body)
        assert (status, "image-of-alice" in text) == (403, False)
    assert before == (world.kept.all(), world.kept.replicas.all(), world.kept.replicas.starts("secretive", 9))


@pytest.mark.parametrize(("word", "body"), [("offer", {"value": 1e300}), ("claim", None), ("park", None)])
def test_an_owner_does_not_say_what_their_idle_replica_is_worth(world: World, word: str, body: object) -> None:
    ledger = world.app.state.engines.own.ledger
    spec, request = JobSpec(("true",), "process", serves="secretive"), Request(1 << 30, 1)
    job = Job(secrets.token_hex(6), spec, request, JobState.EXITED, 1.0, owner_uid=ALICE)
    with ledger.decision() as decision:
        decision.add(Entry(job), ())
    assert world.ask(BOB, "POST", f"/v1/jobs/{job.id}/{word}", body)[0] == 404
    assert world.ask(ALICE, "POST", f"/v1/jobs/{job.id}/{word}", body)[0] == 403
    assert world.ask(0, "POST", f"/v1/jobs/{job.id}/{word}", body)[0] in {400, 409}  # it does not run
    assert ledger.job(job.id) == job


def test_a_secret_is_seen_and_removed_by_its_owner_alone_and_by_none_while_a_version_gets_it(world: World) -> None:
    keeper = world.app.state.functions.store.secrets
    keeper.put(ALICE, "token", b"canary-of-alice")
    given = Deployment("guarded", "app.py:Hidden", "a" * 64, '{"secrets": ["token:env=T"]}', "docker", "image")
    number = world.kept.deploy(given, ALICE).number
    for uid in (BOB, 0):
        assert world.ask(uid, "GET", "/v1/secrets") == (200, "[]")
        assert world.ask(uid, "DELETE", "/v1/secrets/token")[0] == 400
    assert world.ask(BOB, "PUT", "/v1/secrets/token", "x")[0] == 403
    status, text = world.ask(ALICE, "GET", "/v1/secrets")
    assert (status, [each["used_by"] for each in json.loads(text)]) == (200, [[f"guarded@{number}"]])
    status, text = world.ask(ALICE, "DELETE", "/v1/secrets/token")
    assert (status, f"guarded@{number} gets the secret token" in text) == (400, True)
    assert world.ask(ALICE, "GET", "/v1/secrets/token")[0] in {404, 405}
    assert "canary-of-alice" not in world.ask(ALICE, "GET", "/v1/functions")[1]
    world.kept.remove("guarded")
    assert world.ask(ALICE, "DELETE", "/v1/secrets/token") == (204, "")
    assert keeper.names(ALICE) == {}


def test_a_version_whose_packages_and_cache_another_one_made_is_ready_without_a_job_of_its_own(world: World) -> None:
    """As after a second deployment during an installation, or a server that was killed once it had moved the packages."""
    given, store = replace(ASKED, function="twice", requirements="numpy==2.0"), world.app.state.functions.store.store
    cached = replace(
        given, declaration='{"cache": "w@0123456789ab:/cache", "fill": "fetch"}', requirements=None, is_filled=True
    )
    jobs = world.app.state.engines.own.ledger.entries(include_final=True)
    for number, deployment in enumerate((given, cached), 1):
        version = world.kept.deploy(deployment, ALICE)
        assert (version.number, version.state) == (number, VersionState.PENDING)
        digest = layer_digest(version)
        place = store.cache(ALICE, "w@0123456789ab") if digest is None else store.layer(ALICE, digest)
        place.mkdir(parents=True)
        status, text = world.ask(0, "POST", "/v1/builds", {"function": "twice", "version": number})
        assert (status, f"twice@{number} is ready already" in text) == (400, True)
        assert world.kept.get("twice").version(number).state is VersionState.READY
    assert world.app.state.engines.own.ledger.entries(include_final=True) == jobs
    world.kept.remove("twice")


def test_the_owner_and_the_administrator_see_it_and_nobody_else_lists_it(world: World) -> None:
    for uid, names in ((ALICE, ["secretive"]), (BOB, []), (0, ["secretive"])):
        status, text = world.ask(uid, "GET", "/v1/functions")
        assert (status, [each["name"] for each in json.loads(text)]) == (200, names)
    assert world.ask(ALICE, "POST", "/v1/functions/secretive/rollout", {"version": 1})[0] == 200


def test_who_may_not_submit_deploys_nothing_and_sends_nothing(world: World) -> None:
    assert world.ask(BOB, "PUT", f"/v1/bundles/{'0' * 64}", "x")[0] == 403
    status, text = world.ask(BOB, "POST", "/v1/functions", json.loads(wire.encode(ASKED)))
    assert (status, "group" in text) == (403, True)


def test_a_bundle_is_not_served_to_who_knows_its_digest_alone(world: World) -> None:
    assert world.ask(0, "GET", f"/v1/bundles/{'a' * 64}")[0] == 404


def test_nobody_asks_for_what_pgpu_itself_puts_into_a_container(world: World) -> None:
    mount = {"source": "/etc", "target": "/data", "options": "rw"}
    spec = {"command": ["true"], "runtime": "docker", "image": "x", "provisions": [mount]}
    ask = {"submissions": [{"spec": spec, "request": {"memory_bytes": 0, "gpu_count": 0}}]}
    status, text = world.ask(0, "POST", "/v1/jobs", ask)
    assert (status, "cannot be requested" in text) == (400, True)
