"""What the administrator sets for everybody, and that nobody else does."""

import contextlib
import json
import signal
import socket
import sqlite3
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.system.storm_victims import agent
from tests.system.user_world import User, UserWorld, opened_world
from tests.waiting import until

GIB = 1 << 30

ADMINISTERING: list[tuple[str, str, object]] = [
    ("GET", "/v1/admin/quotas", None),
    ("POST", "/v1/admin/quotas", {"uid": 1, "memory_bytes": 1}),
    ("DELETE", "/v1/admin/quotas/1", None),
    ("GET", "/v1/admin/closed-gpus", None),
    ("PUT", "/v1/admin/closed-gpus/*", None),
    ("DELETE", "/v1/admin/closed-gpus/*", None),
    ("GET", "/v1/admin/tokens", None),
    ("POST", "/v1/admin/tokens?uid=0", None),
    ("DELETE", "/v1/admin/tokens/00000000", None),
]


@pytest.fixture(scope="module")
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def world(port: int) -> Iterator[UserWorld]:
    with opened_world("--tcp", f"127.0.0.1:{port}") as made:
        yield made


@pytest.fixture
def admin(world: UserWorld) -> Callable[..., str]:
    return world.admin


@contextlib.contextmanager
def sleeping(user: User, memory: int = GIB, **said: Any) -> Iterator[str]:
    job_id = user.started("sleep", "600", memory=memory, **said)
    try:
        yield job_id
    finally:
        user.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})
        user.until(job_id, "exited", "cancelled", "failed")


def reason(user: User, job_id: str) -> str:
    """Why a job waits, as its owner is told."""
    rows = user.ask("GET", "/v1/queue").value
    return str(next(row["job"]["reason"] for row in rows if row["job"]["id"] == job_id))


def test_spent_gpu_hours_keep_a_users_new_jobs_and_no_other_user_sees_them(
    world: UserWorld, admin: Callable[..., str]
) -> None:
    alice, bob = world.user(), world.user()
    with sleeping(alice, GIB) as running:
        alice.until(running, "running")
        admin("quota", str(alice.uid), "--gpu-hours", "0", "--per", "day")
        with sleeping(alice, GIB) as waits, sleeping(bob, GIB) as others:
            bob.until(others, "running")
            assert "of 0 GPU hours a day are used" in reason(alice, waits)
            alice.until(running, "running")
            [own] = alice.ask("GET", "/v1/usage?since_seconds=0").value
            assert (own["usage"]["uid"], own["quota"]["most"], own["quota"]["period"]) == (alice.uid, 0, "day")
            assert own["usage"]["gpu_seconds"] > 0
            assert bob.ask("GET", f"/v1/usage?since_seconds=0&uid={alice.uid}").status == 403
            assert {each["usage"]["uid"] for each in bob.ask("GET", "/v1/usage?since_seconds=0").value} == {bob.uid}
            admin("quota", str(alice.uid), "--gpu-hours", "100")
            alice.until(waits, "running")
    admin("quota", str(alice.uid), "--remove")


def test_a_user_releases_own_holds_and_none_of_the_administrators(world: UserWorld, admin: Callable[..., str]) -> None:
    alice, bob = world.user(), world.user()
    admin("drain")
    with sleeping(alice, GIB) as job:
        assert bob.ask("POST", "/v1/jobs/hold", {"jobs": [job]}).status == 404
        assert alice.ask("POST", "/v1/jobs/hold", {"jobs": [job]}).value[0]["held_by_uid"] == alice.uid
        assert alice.ask("POST", "/v1/jobs/release", {"jobs": [job]}).value[0]["held_by_uid"] is None
        assert world.root.ask("POST", "/v1/jobs/hold", {"jobs": [job]}).value[0]["held_by_uid"] == 0
        refused = alice.ask("POST", "/v1/jobs/release", {"jobs": [job]})
        assert (refused.status, refused.value["error"]["kinds"][0]) == (403, "AccessError")
        admin("drain", "--end")
        assert world.root.ask("POST", "/v1/jobs/release", {"jobs": [job]}).status == 200
        alice.until(job, "running")


def test_more_than_a_users_quota_waits_and_others_go_on(world: UserWorld, admin: Callable[..., str]) -> None:
    alice, bob = world.user(), world.user()
    admin("quota", str(alice.uid), "--memory", "2GiB")
    quota = {"uid": alice.uid, "memory_bytes": 2 * GIB, "jobs": None, "weight": 1.0}
    hours = {"gpu_hours": None, "period": "week", "used_gpu_hours": 0.0}
    assert json.loads(admin("quota", "--json"))["quotas"] == [{**quota, **hours}]
    with sleeping(alice, 2 * GIB) as first, sleeping(alice, GIB) as second, sleeping(bob, 4 * GIB) as others:
        alice.until(first, "running")
        bob.until(others, "running")
        assert "quota" in reason(alice, second)
        admin("quota", str(alice.uid), "--remove")
        alice.until(second, "running")
    assert json.loads(admin("quota", "--json"))["quotas"] == []


def test_a_change_of_a_quota_keeps_what_it_does_not_name(world: UserWorld, admin: Callable[..., str]) -> None:
    alice = world.user()

    def quota() -> tuple[Any, ...]:
        [own] = json.loads(admin("quota", str(alice.uid), "--json"))["quotas"]
        return tuple(own[name] for name in ("memory_bytes", "jobs", "weight", "gpu_hours", "period"))

    admin("quota", str(alice.uid), "--gpu-hours", "9", "--per", "month", "--weight", "3")
    admin("quota", str(alice.uid), "--jobs", "4")
    assert quota() == (None, 4, 3.0, 9.0, "month")
    admin("quota", str(alice.uid), "--memory", "2GiB", "--gpu-hours", "8")
    assert quota() == (2 * GIB, 4, 3.0, 8.0, "month")
    assert world.root.ask("POST", "/v1/admin/quotas", {"uid": alice.uid, "period": "day", "jobs": 5}).status == 204
    assert quota() == (2 * GIB, 5, 3.0, 8.0, "day")
    admin("quota", str(alice.uid), "--gpu-hours", "none", "--weight", "1")
    assert quota() == (2 * GIB, 5, 1.0, None, "week")
    assert (
        world.root.ask("POST", "/v1/admin/quotas", {"uid": alice.uid, "lifted": ["jobs", "memory_bytes"]}).status == 204
    )
    assert quota() == (None, None, 1.0, None, "week")
    assert world.root.ask("POST", "/v1/admin/quotas", {"uid": alice.uid, "lifted": ["uid"]}).status == 400
    admin("quota", str(alice.uid), "--remove")


def test_no_job_grows_past_its_owners_quota(world: UserWorld, admin: Callable[..., str]) -> None:
    alice = world.user()
    admin("quota", str(alice.uid), "--memory", "2GiB")
    with sleeping(alice, GIB) as job:
        alice.until(job, "running")
        answer = alice.ask("POST", f"/v1/jobs/{job}/resize", {"memory_bytes": 3 * GIB})
        assert (answer.status, "quota" in answer.text) == (409, True)
        assert alice.ask("POST", f"/v1/jobs/{job}/resize", {"memory_bytes": 2 * GIB}).status == 200
    admin("quota", str(alice.uid), "--remove")


def test_more_than_a_users_quota_could_ever_grant_is_refused(world: UserWorld, admin: Callable[..., str]) -> None:
    alice = world.user()
    admin("quota", str(alice.uid), "--memory", "2GiB")
    spec = {"command": ["true"], "runtime": "process", "working_directory": "/"}
    ask = {"submissions": [{"spec": spec, "request": {"memory_bytes": 3 * GIB}}]}
    answer = alice.ask("POST", "/v1/jobs", ask)
    assert (answer.status, f"the quota of user {alice.uid} is 2 GiB" in answer.text) == (400, True)
    admin("quota", str(alice.uid), "--remove")


def test_nobody_but_root_goes_before_others_by_priority(world: UserWorld) -> None:
    alice = world.user()
    ask = {
        "submissions": [
            {
                "spec": {"command": ["true"], "runtime": "process", "working_directory": "/"},
                "request": {"memory_bytes": GIB, "priority": 1},
            }
        ]
    }
    assert alice.ask("POST", "/v1/jobs", ask).status == 403
    assert world.root.ask("POST", "/v1/jobs", ask).status == 201


@pytest.mark.soak
def test_a_drain_starts_nothing_new_and_ends_nothing(world: UserWorld, admin: Callable[..., str]) -> None:
    alice = world.user()
    with sleeping(alice) as before:
        alice.until(before, "running")
        admin("drain")
        try:
            assert json.loads(admin("exclude", "--json")) == {"is_drained": True, "excluded": []}
            with sleeping(alice) as after:
                assert "administrator" in reason(alice, after)
                assert alice.job(before)["state"] == "running"
                admin("drain", "--end")
                alice.until(after, "running")
        finally:
            world.root.ask("DELETE", "/v1/admin/closed-gpus/*")


def test_a_gpu_that_is_taken_out_takes_no_job(world: UserWorld, admin: Callable[..., str]) -> None:
    alice = world.user()
    gpu = world.root.ask("GET", "/v1/gpus").value[0]["gpu"]["uuid"]
    admin("exclude", gpu)
    try:
        with sleeping(alice) as job:
            alice.until(job, "waiting")
            admin("exclude", gpu, "--end")
            alice.until(job, "running")
    finally:
        assert json.loads(admin("exclude", "--json"))["excluded"] == []


def test_the_administrator_ends_all_jobs_of_one_user(world: UserWorld, admin: Callable[..., str]) -> None:
    alice, bob = world.user(), world.user()
    with sleeping(alice) as first, sleeping(alice) as second, sleeping(bob) as others:
        bob.until(others, "running")
        assert set(admin("stop", "--user", str(alice.uid), "--time", "0s").split()) == {first, second}
        assert bob.job(others)["state"] == "running"


@pytest.mark.parametrize(("method", "route", "body"), ADMINISTERING)
def test_nobody_but_root_administers(world: UserWorld, method: str, route: str, body: object) -> None:
    answer = world.user().ask(method, route, body)
    assert answer.status == 403
    assert "administrator" in answer.text


def test_every_route_of_the_administrator_is_tried_above(world: UserWorld) -> None:
    paths = world.root.ask("GET", "/openapi.json").value["paths"]
    there = {(method.upper(), path) for path, methods in paths.items() if "/admin/" in path for method in methods}
    tried = {(method, _of_openapi(route)) for method, route, _ in ADMINISTERING}
    assert there == tried


def _of_openapi(route: str) -> str:
    for value, name in (("/1", "/{uid}"), ("/*", "/{uuid}"), ("/00000000", "/{token}")):
        route = route.replace(value, name)
    return route.partition("?")[0]


def show(port: int, route: str, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{route}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_token_stands_for_its_user_until_it_is_revoked(admin: Callable[..., str], port: int) -> None:
    nobody = 65534  # of this machine's database, whoever lives on it
    made = json.loads(admin("token", "create", "--user", str(nobody), "--json"))
    assert show(port, "/v1/jobs", made["token"]) == (200, "[]")
    assert show(port, "/v1/admin/tokens", made["token"])[0] == 403
    assert made["token"] not in admin("token", "list")
    assert made["id"] in admin("token", "list")
    admin("token", "revoke", made["id"])
    assert show(port, "/v1/jobs", made["token"])[0] == 401


def test_a_token_that_expires_is_valid_until_then(world: UserWorld, admin: Callable[..., str], port: int) -> None:
    lasting = json.loads(admin("token", "create", "--user", "nobody", "--expires", "30d", "--json"))
    expired = json.loads(admin("token", "create", "--user", "nobody", "--expires", "1ms", "--json"))
    assert lasting["expires_at_seconds"] - expired["expires_at_seconds"] > 29 * 86_400
    assert show(port, "/v1/jobs", lasting["token"])[0] == 200
    until(lambda: time.time() > expired["expires_at_seconds"])
    assert show(port, "/v1/jobs", expired["token"])[0] == 401
    listed = json.loads(admin("token", "list", "--json"))["tokens"]
    assert {each["id"]: each["expires_at_seconds"] for each in listed} == {lasting["id"]: lasting["expires_at_seconds"]}
    # A version of pgpu that knows no ends compares the whole column.
    with contextlib.closing(sqlite3.connect(world.place.path / "state" / "ledger.db")) as ledger:
        [(digest,)] = ledger.execute("SELECT digest FROM tokens WHERE id = ?", (lasting["id"],)).fetchall()
    assert digest.endswith(f"@{lasting['expires_at_seconds']!r}")
    admin("token", "revoke", lasting["id"])


def audited(world: UserWorld) -> list[dict[str, Any]]:
    lines = (world.place.path / "state" / "audit.log").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_what_administrators_do_and_who_is_refused_is_in_the_audit_log(
    world: UserWorld, admin: Callable[..., str], port: int
) -> None:
    alice = world.user()
    show(port, "/v1/jobs", "pgpu_00000000_guess")
    known = len(audited(world))
    admin("quota", str(alice.uid), "--memory", "2GiB")
    admin("quota", str(alice.uid), "--remove")
    admin("drain")
    admin("drain", "--end")
    made = json.loads(admin("token", "create", "--user", "nobody", "--expires", "1h", "--json"))
    admin("token", "revoke", made["id"])
    assert alice.ask("GET", "/v1/admin/quotas").status == 403
    with sleeping(alice) as job_id:
        admin("stop", job_id)
    entries = audited(world)[known:]
    done = ["quota.set", "quota.remove", "gpu.close", "gpu.open", "token.create", "token.revoke"]
    assert [each["action"] for each in entries] == [*done, "admin.refused", "job.stop"]
    assert {each["uid"] for each in entries if each["action"] != "admin.refused"} == {0}
    assert entries[0]["quota"]["memory_bytes"] == 2 * GIB
    assert (entries[4]["token"], entries[4]["user"]) == (made["id"], 65534)
    assert (entries[6]["uid"], entries[6]["path"]) == (alice.uid, "/v1/admin/quotas")
    assert entries[7]["jobs_by_owner"] == {str(alice.uid): [job_id]}
    refused = [each for each in audited(world) if each["action"] == "login.refused"]
    assert {each["address"] for each in refused} == {"127.0.0.1"}
    assert made["token"] not in (world.place.path / "state" / "audit.log").read_text()


def test_a_hang_up_reloads_the_settings_that_can_be_and_names_the_others(world: UserWorld) -> None:
    alice = world.user()
    file = world.place.path / "config" / "pgpu" / "config.toml"
    file.parent.mkdir(parents=True)
    assert world.server.stderr is not None

    def reload(text: str, last: str) -> list[str]:
        file.write_text(text)
        world.server.send_signal(signal.SIGHUP)
        said = [str(world.server.stderr.readline())]  # type: ignore[union-attr]
        while last not in said[-1]:
            said.append(str(world.server.stderr.readline()))  # type: ignore[union-attr]
            assert said[-1], said
        return said

    with sleeping(alice, 20 * GIB) as running, sleeping(alice, 20 * GIB):
        alice.until(running, "running")
        before = agent(world.place.path / "run")
        said = reload('waiting_jobs = 1\nbuild_timeout = "1m"\n', "build_timeout")
        assert "settings reloaded: waiting_jobs" in said[-2]
        assert "start of a server alone: build_timeout" in said[-1]
        refused = alice.submit("true", memory=20 * GIB)
        assert refused.status >= 400, refused.text
        until(lambda: agent(world.place.path / "run") != before)
        assert alice.job(running)["state"] == "running"
        assert "settings are kept" in reload("waiting_jobs = 0\n", "settings are kept")[-1]
        assert alice.submit("true", memory=20 * GIB).status >= 400
        reload("", "settings reloaded: waiting_jobs")
        with sleeping(alice, 20 * GIB):
            pass
    assert [each["applied"] for each in audited(world) if each["action"] == "settings.reload"] == [["waiting_jobs"]] * 2


@pytest.mark.parametrize("token", [None, "", "pgpu_", "pgpu_00000000_", "pgpu__x", "root", "pgpu_00000000_guess", "0"])
def test_no_token_and_no_guess_lets_anybody_in(world: UserWorld, port: int, token: str | None) -> None:
    assert world.server.poll() is None
    assert show(port, "/v1/jobs", token)[0] == 401


def test_the_ledger_holds_no_token(world: UserWorld, admin: Callable[..., str]) -> None:
    text = json.loads(admin("token", "create", "--user", "nobody", "--json"))["token"]
    secret = text.rpartition("_")[2].encode() if text.count("_") == 2 else text.split("_", 2)[2].encode()
    state = world.place.path / "state"
    for path in state.glob("ledger.db*"):
        assert secret not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    admin("token", "revoke", text.split("_")[1])


def test_bad_words_of_the_administrator_get_one_line_and_change_nothing(world: UserWorld) -> None:
    for words in (
        ["quota", "no-such-user", "--jobs", "1"],
        ["quota", "nobody", "--jobs", "-1"],
        ["quota", "nobody", "--jobs", "many"],
        ["quota", "nobody", "--per", "month"],
        ["quota", "nobody", "--weight", "0"],
        ["quota", "nobody", "--weight", "1e-9"],
        ["quota", "nobody", "--gpu-hours", "-1"],
        ["quota", "nobody", "--gpu-hours", "1", "--per", "year"],
        ["exclude", "GPU-of-nobody"],
        ["exclude", "GPU-of-nobody", "--end"],
        ["drain", "--end"],
        ["token", "revoke", "00000000"],
        ["token", "create", "--user", "nobody", "--expires", "0s"],
        ["token", "create", "--user", "nobody", "--expires", "soon"],
        ["stop"],
        ["stop", "--all", "--user", "nobody"],
    ):
        done = world.place.run("admin", *words, PGPU_HOST=f"unix://{world.socket}")
        assert (done.returncode, done.stdout) == (125, ""), words
        assert 1 <= len(done.stderr.splitlines()) <= 2, done.stderr
    assert world.root.ask("GET", "/v1/admin/quotas").value == []
