"""What the ledger promises of functions: durable, whole or not at all, and one owner for each name."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import FunctionNotFoundError, RequestError
from pgpu.ledger import Ledger
from pgpu.ledger.functions import MOST_FUNCTIONS, MOST_TEXT_BYTES, MOST_VERSIONS
from pgpu.model import (
    ColdStart,
    Deployment,
    FunctionToken,
    Replica,
    ReplicaState,
    Share,
    VersionState,
    with_canary,
)
from pgpu.structs import replace

ASKED = Deployment("detector", "app.py:Detector", "a" * 64, '{"memory":"4GiB"}')
DOCKER = replace(ASKED, runtime="docker", image="python:3.12", requirements="numpy==2.0\n")


def shares(ledger: Ledger, name: str = "detector") -> list[tuple[int, int]]:
    return [(share.version, share.percent) for share in ledger.functions.get(name).traffic]


def test_everything_of_a_version_comes_back_as_it_was(ledger: Ledger, ledger_path: Path) -> None:
    made = ledger.functions.deploy(DOCKER, 7, "words")
    another = Ledger(ledger_path)
    (found,) = another.functions.all(7)
    another.close()
    assert found.versions == (made,)
    assert ledger.functions.version_to_start("detector", 1) == (made, "words")
    assert (found.name, found.owner_uid, found.traffic) == ("detector", 7, (Share(1, 100),))
    assert (made.number, made.app, made.bundle, made.declaration) == (1, ASKED.app, ASKED.bundle, ASKED.declaration)
    assert (made.runtime, made.image, made.requirements) == ("docker", "python:3.12", "numpy==2.0\n")
    assert (made.state, made.reason, made.label) == (VersionState.PENDING, None, "detector@1")


def test_a_version_that_installs_nothing_is_ready_at_once(ledger: Ledger) -> None:
    assert ledger.functions.deploy(ASKED, 7).state is VersionState.READY


def test_the_first_version_gets_all_traffic_and_others_get_it_if_they_are_rolled_out(ledger: Ledger) -> None:
    ledger.functions.deploy(replace(ASKED, rolls_out=False), 7)
    assert shares(ledger) == [(1, 100)]
    ledger.functions.deploy(replace(ASKED, rolls_out=False), 7)
    assert shares(ledger) == [(1, 100)]
    ledger.functions.deploy(ASKED, 7)
    assert shares(ledger) == [(3, 100)]


def test_a_name_has_one_owner_whoever_asks_at_the_same_time(ledger: Ledger) -> None:
    refused: list[int] = []

    def deploy(uid: int) -> None:
        try:
            ledger.functions.deploy(ASKED, uid)
        except RequestError:
            refused.append(uid)

    threads = [threading.Thread(target=deploy, args=(uid,)) for uid in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert {ledger.functions.get("detector").owner_uid} == set(range(8)) - set(refused)


def test_strangers_are_told_as_of_what_does_not_exist(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    assert ledger.functions.all(8) == []
    words = []
    for name in ("detector", "no-such", "odd\udcff"):
        with pytest.raises(FunctionNotFoundError) as refusal:
            ledger.functions.get(name, 8)
        words.append(str(refusal.value).replace(repr(name), "NAME"))
    assert len(set(words)) == 1


def test_a_rollback_goes_back_step_by_step_and_past_what_failed(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.functions.deploy(ASKED, 7)
    ledger.functions.roll_out("detector", with_canary([Share(3, 100)], 2, 10))
    assert shares(ledger) == [(3, 90), (2, 10)]
    ledger.functions.roll_back("detector")
    assert shares(ledger) == [(3, 100)]
    ledger.functions.set_version_state("detector", 2, VersionState.FAILED, "it did not start")
    ledger.functions.roll_back("detector")
    assert shares(ledger) == [(1, 100)]
    with pytest.raises(RequestError, match="to go back to"):
        ledger.functions.roll_back("detector")
    with pytest.raises(RequestError, match="it did not start"):
        ledger.functions.roll_out("detector", [Share(2, 100)])
    assert shares(ledger) == [(1, 100)]


def test_a_canary_that_got_all_of_the_traffic_keeps_nothing_of_it_after_a_rollback(ledger: Ledger) -> None:
    for number in (1, 2):
        ledger.functions.deploy(replace(ASKED, rolls_out=number == 1), 7)
    for percent in (10, 50, 100):
        ledger.functions.roll_out("detector", with_canary(ledger.functions.get("detector").traffic, 2, percent))
    ledger.functions.roll_back("detector")
    assert shares(ledger) == [(1, 100)]
    ledger.functions.roll_out("detector", with_canary([Share(1, 100)], 2, 10))
    ledger.functions.roll_out("detector", [Share(1, 100)])
    ledger.functions.roll_back("detector")
    assert shares(ledger) == [(1, 90), (2, 10)]


def test_the_traffic_of_a_version_that_fails_is_again_what_it_was(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.functions.deploy(ASKED, 7)
    ledger.functions.roll_out("detector", with_canary([Share(2, 100)], 1, 10))
    ledger.functions.set_version_state("detector", 2, VersionState.FAILED, "no")
    assert shares(ledger) == [(1, 100)]
    ledger.functions.set_version_state("detector", 1, VersionState.FAILED, "nor this")
    assert shares(ledger) == [(1, 100)]
    ledger.functions.deploy(ASKED, 7)
    assert shares(ledger) == [(3, 100)]


def test_traffic_goes_only_where_there_is_something_and_all_of_it(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    for traffic in ([Share(2, 100)], [Share(1, 99)], [], [Share(1, 50), Share(9, 50)]):
        with pytest.raises(RequestError):
            ledger.functions.roll_out("detector", traffic)
    assert shares(ledger) == [(1, 100)]


def test_nothing_is_left_of_a_function_that_was_removed(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    ledger.functions.tokens.put("t1", "detector", "digest", "phone")
    replica = Replica("0" * 12, "detector", 1, "/run/x", ReplicaState.STARTING)
    ledger.functions.replicas.put(replica)
    ledger.functions.remove("detector")
    assert ledger.functions.all() == []
    assert ledger.functions.replicas.all() == []
    assert ledger.functions.tokens.digest("t1") is None
    for ask in (ledger.functions.remove, ledger.functions.get, ledger.functions.roll_back):
        with pytest.raises(FunctionNotFoundError):
            ask("detector")
    with pytest.raises(FunctionNotFoundError):
        ledger.functions.replicas.put(replica)
    assert ledger.functions.deploy(ASKED, 8).number == 1


def test_who_looked_at_a_function_changes_none_that_got_its_name_meanwhile(ledger: Ledger) -> None:
    theirs = ledger.functions.deploy(ASKED, 7)
    identity = ledger.functions.get("detector").identity
    ledger.functions.remove("detector", identity)
    with pytest.raises(FunctionNotFoundError):
        ledger.functions.version_to_start("detector", 1)
    ledger.functions.deploy(ASKED, 8)
    before = ledger.functions.get("detector")
    replica = Replica("0" * 12, "detector", 1, "/run/x", ReplicaState.STARTING)
    made = theirs.created_at_seconds
    for change in (
        lambda: ledger.functions.roll_out("detector", [Share(1, 100)], identity),
        lambda: ledger.functions.roll_back("detector", identity),
        lambda: ledger.functions.remove("detector", identity),
        lambda: ledger.functions.set_version_state("detector", 1, VersionState.FAILED, "no", made),
        lambda: ledger.functions.tokens.put("t1", "detector", "digest", "phone", identity),
        lambda: ledger.functions.replicas.put(replica, made),
    ):
        with pytest.raises(FunctionNotFoundError):
            change()
    assert ledger.functions.get("detector") == before
    assert (ledger.functions.tokens.of("detector"), ledger.functions.replicas.all()) == ([], [])


def test_a_token_is_found_by_its_id_and_never_shown_again(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    ledger.functions.tokens.put("t1", "detector", "digest", "phone")
    assert ledger.functions.tokens.digest("t1") == (ledger.functions.get("detector").identity, "digest")
    (found,) = ledger.functions.tokens.of("detector")
    assert found == FunctionToken("t1", "detector", "phone", found.created_at_seconds)
    assert not ledger.functions.tokens.remove("another", "t1")
    assert ledger.functions.tokens.remove("detector", "t1")
    assert ledger.functions.tokens.digest("t1") is None


def test_replicas_and_their_starts_are_found_again(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    starting = Replica("0" * 12, "detector", 1, "/run/x", ReplicaState.STARTING)
    ledger.functions.replicas.put(starting)
    assert ledger.functions.replicas.note(starting.job_id, ReplicaState.HOT)
    assert not ledger.functions.replicas.note("f" * 12, ReplicaState.HOT)
    assert ledger.functions.replicas.all("detector") == [replace(starting, state=ReplicaState.HOT)]
    starts = [ColdStart("detector", 1, f"{n:012}", float(n), (("grant", 0.5), ("imports", n))) for n in range(3)]
    for start in starts:
        ledger.functions.replicas.note_start(start)
    assert ledger.functions.replicas.starts("detector", 2) == [starts[2], starts[1]]
    assert ledger.functions.replicas.remove(starting.job_id)
    assert not ledger.functions.replicas.remove(starting.job_id)


def test_each_change_is_told_to_those_who_watch(ledger: Ledger) -> None:
    ledger.functions.deploy(replace(ASKED, requirements="x"), 7)
    ledger.functions.deploy(ASKED, 7)
    ledger.functions.set_version_state("detector", 1, VersionState.READY)
    ledger.functions.roll_back("detector")
    ledger.functions.remove("detector")
    events = [each for each in ledger.events.after(0, 99) if each.kind == "function"]
    expected = ["deployed", "rolled-out", "deployed", "rolled-out", "ready", "rolled-back", "removed"]
    assert [each.state for each in events] == expected
    assert {(each.owner_uid, each.message) for each in events} == {(7, "detector")}


def test_nobody_takes_all_names(ledger: Ledger) -> None:
    ledger.functions.deploy(replace(ASKED, function="first"), 7)
    names = [(f"f{number}", 7, 0.0) for number in range(MOST_FUNCTIONS - 2)]
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.executemany("INSERT INTO functions VALUES (?, ?, ?)", names)
    ledger.functions.deploy(replace(ASKED, function="last"), 7)
    with pytest.raises(RequestError, match="functions"):
        ledger.functions.deploy(replace(ASKED, function="more"), 7)
    ledger.functions.deploy(replace(ASKED, function="more"), 8)


def test_a_function_has_only_so_many_versions(ledger: Ledger) -> None:
    ledger.functions.deploy(ASKED, 7)
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("UPDATE function_versions SET number = ?", (MOST_VERSIONS - 1,))
    ledger.functions.deploy(ASKED, 7)
    with pytest.raises(RequestError, match="versions"):
        ledger.functions.deploy(ASKED, 7)


def test_nobody_fills_everybodys_lists(ledger: Ledger) -> None:
    large = replace(ASKED, requirements="x" * ((MOST_TEXT_BYTES - 1600) // 2))
    ledger.functions.deploy(large, 7)
    ledger.functions.deploy(large, 7)
    with pytest.raises(RequestError, match="lock files"):
        ledger.functions.deploy(replace(large, function="other"), 7)
    assert [each.name for each in ledger.functions.all(7)] == ["detector"]
    ledger.functions.deploy(replace(large, function="theirs"), 8)
    for small in (ASKED, replace(ASKED, app="y" * 200), replace(ASKED, runtime="docker", image="y" * 200)):
        with pytest.raises(RequestError, match="lock files"):
            ledger.functions.deploy(small, 7)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=2, unique=True),
    st.integers(1, 99),
    st.integers(1, 6),
    st.integers(-5, 105),
)
def test_a_canary_leaves_the_rest_to_one_other(versions: list[int], first: int, number: int, percent: int) -> None:
    rest = [Share(versions[1], 100 - first)] if len(versions) > 1 else []
    traffic = [Share(versions[0], first if rest else 100), *rest]
    try:
        made = with_canary(traffic, number, percent)
    except RequestError:
        assert not 1 <= percent <= 100 or versions == [number]
        return
    assert sum(share.percent for share in made) == 100
    assert next(share.percent for share in made if share.version == number) == percent
    assert {share.version for share in made} <= {*versions, number}
