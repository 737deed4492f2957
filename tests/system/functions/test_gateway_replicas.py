"""Replicas behind a gateway: found again, replaced by a new version, rolled back, offered and taken."""

import os
import signal

import psutil
from tests.system.functions.gateways import Gateway, function, gateway, version
from tests.system.functions.replicas import Connection, answer_of
from tests.waiting import until

from pgpu.model import Share
from pgpu.structs import replace


def starts(made: Gateway, name: str) -> int:
    return sum(record["function"] == name for record in made.desk.records().values())


def test_a_gateway_that_is_killed_finds_its_replicas_again() -> None:
    with gateway(function("echo", "Echo", min_replicas=1)) as made:
        before = made.call("echo", {"x": 1}).value["pid"]
        made.end(signal.SIGKILL)
        made.start()
        assert made.call("echo", {"x": 2}).value == {"x": 2, "pid": before}
        assert starts(made, "echo") == 1


def test_calls_that_wait_behind_a_long_one_get_a_replica_of_their_own() -> None:
    with gateway(function("it", "Fickle", max_replicas=2)) as made:
        for _ in range(30):
            assert made.call("it", {"do": "nothing"}).status == 200
        long = made.begin("it", {"do": "until cancelled"})
        until(lambda: made.metric("pgpu_gateway_now", "it", "in_flight") == 1)
        short = [made.begin("it", {"do": "nothing"}) for _ in range(12)]
        assert [answer_of(each).status for each in short] == [200] * 12
        assert made.metric("pgpu_gateway_now", "it", "in_flight") == 1
        long.close()


def test_a_stream_that_nobody_reads_yields_its_place_to_calls_that_wait() -> None:
    with gateway(function("it", "Stream")) as made:
        unread = made.begin("it", {"count": 10_000_000}, accept="application/x-ndjson")
        until(lambda: made.metric("pgpu_gateway_now", "it", "in_flight") == 1)
        assert made.call("it", {"count": 3}, accept="application/x-ndjson").status == 200
        unread.close()


def test_a_replica_that_was_on_offer_when_its_gateway_was_killed_is_claimed_before_its_next_call() -> None:
    with gateway(function("it", "Echo")) as made:
        made.call("it", {"x": 1})
        until(lambda: any(record.get("offered") is not None for record in made.desk.records().values()))
        made.end(signal.SIGKILL)
        made.start()
        made.call("it", {"x": 2})
        assert [record["offered"] for record in made.desk.records().values()] == [None]


def test_a_new_version_takes_over_on_a_full_gpu_and_no_call_is_lost() -> None:
    old = function("it", "Echo")
    with gateway(old, room=1) as made:
        first = made.call("it", {"x": 1}).value["pid"]
        new = replace(old, versions=(*old.versions, version("it", "Echo", 2, {})), traffic=(Share(2, 100),))
        made.desk.put(new)
        until(lambda: made.call("it", {"x": 1}).value["pid"] != first)
        assert [record["version"] for record in made.desk.records().values()] == [2]


def test_a_new_version_that_does_not_start_is_rolled_back_and_no_call_is_lost() -> None:
    old = function("it", "Echo", min_replicas=1)
    with gateway(old, room=1) as made:
        assert made.call("it", {"x": 1}).status == 200
        broken = version("it", "Broken", 2, {})
        made.desk.put(replace(old, versions=(*old.versions, broken), traffic=(Share(2, 100),)))
        answered = []
        while made.desk.functions()[0].traffic != (Share(1, 100),):
            answered.append(made.call("it", {"x": 2}).status)
        answered.append(made.call("it", {"x": 2}).status)
        assert set(answered) == {200}
        until(lambda: [record["version"] for record in made.desk.records().values()] == [1])


def test_an_idle_replica_is_offered_claimed_for_a_call_and_replaced_once_it_was_taken() -> None:
    with gateway(function("it", "Echo")) as made:
        first = made.call("it", {"x": 1}).value["pid"]
        job_id = next(iter(made.desk.records()))
        until(lambda: made.desk.records()[job_id].get("offered") is not None)
        assert made.call("it", {"x": 1}).value["pid"] == first
        assert made.desk.records()[job_id]["offered"] is None
        until(lambda: made.desk.records()[job_id].get("offered") is not None)
        made.desk.take(job_id)
        assert made.call("it", {"x": 1}).value["pid"] != first


def parked(made: Gateway) -> tuple[int, str]:
    """Have the only replica called, offered and taken; return its worker's PID and its job's id."""
    first = made.call("it", {"x": 1}).value["pid"]
    [job_id] = made.desk.records()
    until(lambda: made.desk.records()[job_id].get("offered") is not None)
    made.desk.take_and_park(job_id)
    until(lambda: made.desk.records()[job_id]["state"] == "parked")
    return first, job_id


def test_a_replica_whose_slice_is_taken_is_parked_and_serves_again_with_what_it_had() -> None:
    with gateway(function("it", "Echo", gpus=1)) as made:
        first, job_id = parked(made)
        assert made.call("it", {"x": 2}).value == {"x": 2, "pid": first}
        until(lambda: len(made.desk.starts()) == 2)
        assert [name for name, _ in made.desk.starts()[1]["phases"]] == [
            "grant",
            "restore",
            "constructor",
            "first_call",
        ]
        assert list(made.desk.records()) == [job_id]


def test_a_parked_replica_without_its_worker_starts_another_one_of_its_zygote() -> None:
    with gateway(function("it", "Echo", gpus=1)) as made:
        first, job_id = parked(made)
        os.kill(first, signal.SIGKILL)
        second = made.call("it", {"x": 2}).value["pid"]
        assert second != first
        assert list(made.desk.records()) == [job_id]


def test_a_parked_replica_serves_nobody_before_it_has_its_slice_again() -> None:
    with gateway(function("it", "Echo", gpus=1)) as made:
        made.desk.let_nobody_back()
        first, job_id = parked(made)
        waiting = made.begin("it", {"x": 2})
        until(lambda: made.desk.records()[job_id].get("is_claimed"))
        until(lambda: made.desk.records()[job_id]["state"] == "starting")
        front = Connection(made.root / job_id / "http.sock")
        assert front.ask("/healthz").value["state"] == "parked"
        front.close()
        made.desk.bring_back(job_id)
        assert answer_of(waiting).value == {"x": 2, "pid": first}


def test_an_idle_replica_is_parked_instead_of_ended() -> None:
    with gateway(function("it", "Echo", gpus=1, scale_to_zero_after=1)) as made:
        first = made.call("it", {"x": 1}).value["pid"]
        [job_id] = made.desk.records()
        until(lambda: made.desk.records()[job_id].get("state") == "parked")
        assert made.call("it", {"x": 2}).value == {"x": 2, "pid": first}


def test_an_idle_replica_without_a_gpu_ends_its_worker_and_keeps_what_it_has_imported() -> None:
    with gateway(function("it", "Echo", scale_to_zero_after=1)) as made:
        first = made.call("it", {"x": 1}).value["pid"]
        until(lambda: not psutil.pid_exists(first))
        [job_id] = made.desk.records()
        assert made.call("it", {"x": 2}).value["pid"] != first
        assert list(made.desk.records()) == [job_id]


def test_a_replica_that_takes_long_to_end_is_not_taken_for_another_one() -> None:
    with gateway(function("it", "Echo", scale_to_zero_after=0.1)) as made:
        made.desk.hold_stops()
        first = made.call("it", {"x": 1}).value["pid"]
        until(lambda: any(record.get("stopping") for record in made.desk.records().values()))
        for _ in range(3):
            looks = made.desk.looks()
            made.desk.put(function("it", "Echo", scale_to_zero_after=0.1))
            until(lambda seen=looks: made.desk.looks() > seen)  # type: ignore[misc] # it is told of a change
        assert made.call("it", {"x": 2}).value["pid"] != first
