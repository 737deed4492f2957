"""What runs teach, from the command line to the ledger and back: sizes nobody had to say."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest
from tests.system.conftest import Place, opened_place

from pgpu.ledger import Ledger
from pgpu.scheduling import Quota
from pgpu.units import GIB, MIB

Eventually = Callable[[Callable[[], Any]], Any]

P2_USES_BYTES = 1205 * MIB
JOB = """
import fcntl, sys
from pgpu.workloads.__main__ import main
sys.argv[1:] = ["training", "--epochs", "1", "--batches", "5", "--host-ms", "1"]
code = main()
fcntl.flock(open("held", "a"), fcntl.LOCK_SH)  # until nobody holds it back
sys.exit(code)
"""
"""P2's job with TensorFlow's default, unchanged: it takes nearly all it sees unless its environment says otherwise."""

HOLDER = """
import ctypes, fcntl, sys
from cuda.bindings import driver as cuda
cuda.cuInit(0)
context = cuda.cuDevicePrimaryCtxRetain(0)[1]
cuda.cuCtxSetCurrent(context)
for mib in sys.argv[1:]:
    error = cuda.cuMemAlloc(int(mib) << 20)[0]
    print(mib, int(error), flush=True)
    if int(error):
        sys.exit(9)
fcntl.flock(open("held", "a"), fcntl.LOCK_SH)  # until nobody holds it back
"""
"""Takes so many MiB one after another, and ends with 9 where it is refused."""

LATE = HOLDER.replace(
    "    error =", "    if mib == sys.argv[2]:\n        fcntl.flock(open('go', 'a'), fcntl.LOCK_SH)\n    error ="
)
"""The same, and takes the second amount only once nobody holds `go` back."""


@pytest.fixture
def place() -> Iterator[Place]:
    with opened_place() as made:
        made.environment["PGPU_STABLE_TIME"] = "0.5s"
        (made.path / "p2.py").write_text(JOB)
        (made.path / "hold.py").write_text(HOLDER)
        (made.path / "late.py").write_text(LATE)
        yield made


def set_quota(place: Place, memory_bytes: int) -> None:
    """Let this user hold no more."""
    place.run("ps")
    ledger = Ledger(place.path / "state" / "ledger.db")
    with ledger.decision() as decision:
        decision.put_quota(os.getuid(), Quota(memory_bytes))
    ledger.close()


def held_back(place: Place, name: str = "held") -> IO[str]:
    """Keep these programs from ending until the file is closed."""
    held = (place.path / name).open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def is_shrunk(place: Place, name: str) -> bool:
    job = place.job(name)
    return job is not None and job["lease"] is not None and job["lease"]["slices"][0]["memory_bytes"] < 20 * GIB


def run_p2(place: Place) -> Any:
    done = place.run("run", "--memory", "auto", "--", "python", "p2.py")
    assert done.returncode == 0, done.stderr
    job = place.json("ps", "--all")["jobs"][-1]
    said = {
        "unknown": "is unknown: it gets",
        "family": "from earlier runs, some",
        "history": "from the peaks of its earlier runs",
    }
    assert said[job["request"]["basis"]] in done.stderr
    return job


def test_p2_s_job_unchanged_reserves_what_it_uses_by_its_fourth_run_and_as_many_as_fit_run_together(
    place: Place, eventually: Eventually
) -> None:
    first = [run_p2(place) for _ in range(3)]
    assert [job["request"]["basis"] for job in first] == ["unknown", "family", "family"]
    sizes = [job["request"]["memory_bytes"] for job in first]
    assert sizes[0] > 22 * GIB, "nobody knew, and the GPU was free"
    assert P2_USES_BYTES < sizes[2] < sizes[1] < 1.7 * P2_USES_BYTES
    fourth = run_p2(place)
    assert fourth["request"]["basis"] == "history"
    assert fourth["request"]["memory_bytes"] <= 1.3 * P2_USES_BYTES

    held = held_back(place)
    gpu = place.json("gpus")["gpus"][0]
    kept_for_growth = gpu["memory_bytes"] // 20
    fit = (gpu["capacity_bytes"] - kept_for_growth) // fourth["request"]["memory_bytes"]
    place.run("submit", "--array", f"0-{fit}", "--", "python", "p2.py")
    eventually(lambda: [job["state"] for job in place.json("ps")["jobs"]].count("running") == fit)
    jobs = place.json("ps")["jobs"]
    assert sum(job["state"] == "waiting" for job in jobs) == 1, f"{fit} fit, and one more was asked for"
    assert fit >= 14
    held.close()
    eventually(lambda: not place.json("ps")["jobs"])
    ended = place.json("ps", "--all")["jobs"]
    assert [job["exit_code"] for job in ended] == [0] * (4 + fit + 1)


def test_waste_shows_p2_s_nineteenfold_and_what_should_have_been_asked(place: Place) -> None:
    done = place.run("run", "--memory", "22885MiB", "-e", "TF_FORCE_GPU_ALLOW_GROWTH=true", "--", "python", "p2.py")
    assert done.returncode == 0, done.stderr
    document = place.json("waste")
    check(document, "waste.schema.json")
    (wasted,) = document["jobs"]
    assert 19 <= wasted["factor"] < 20
    assert wasted["should_ask_bytes"] <= 1.3 * P2_USES_BYTES
    assert "19." in place.run("waste").stdout


def test_what_a_take_all_program_takes_is_called_greed_and_not_need(place: Place) -> None:
    assert place.run("run", "--memory", "20GiB", "--", "python", "p2.py").returncode == 0
    (wasted,) = place.json("waste")["jobs"]
    assert (wasted["is_greedy"], wasted["should_ask_bytes"]) == (True, None)
    assert "it took all it saw" in place.run("waste").stdout
    assert place.json("history")["calls"][0]["estimate"] == {"memory_bytes": 20 * GIB, "basis": "sufficed", "runs": 1}


def test_history_names_the_program_its_runs_and_what_auto_would_reserve(place: Place) -> None:
    for _ in range(3):
        run_p2(place)
    document = place.json("history")
    check(document, "history.schema.json")
    (call,) = document["calls"]
    assert call["signature"].startswith("p2.py@")
    assert call["estimate"]["basis"] == "history"
    assert [run["exit_code"] for run in call["runs"]] == [0, 0, 0]
    assert all(run["context_bytes"] > 200 * MIB for run in call["runs"])
    by_job = place.json("history", call["runs"][1]["job_id"])
    assert by_job["calls"] == [call]
    assert place.run("history", "p2.py").stdout.count(" 254 MiB") == 3
    unknown = place.run("history", "nothing")
    assert (unknown.returncode, unknown.stdout) == (125, "")


def test_a_job_of_unknown_size_shrinks_to_what_it_holds_once_it_is_stable(place: Place, eventually: Eventually) -> None:
    held = held_back(place)
    place.run("submit", "--name", "unknown", "--", "python", "hold.py", "3000")
    eventually(lambda: is_shrunk(place, "unknown"))
    job = place.job("unknown")
    peak_bytes = job["lease"]["slices"][0]["peak_bytes"]
    assert peak_bytes < job["request"]["memory_bytes"] <= 1.15 * peak_bytes + 1
    place.run("submit", "--name", "beside", "--memory", "18GiB", "--", "python", "hold.py", "17000")
    eventually(lambda: place.job("beside")["state"] == "running")
    held.close()
    eventually(lambda: not place.json("ps")["jobs"])
    assert [place.job(name)["exit_code"] for name in ("unknown", "beside")] == [0, 0]


def test_of_a_new_family_four_jobs_run_at_once_until_one_of_it_has_ended(place: Place, eventually: Eventually) -> None:
    with held_back(place):
        place.run("submit", "--array", "0-5", "--", "python", "hold.py", "100")
        eventually(lambda: [job["state"] for job in place.json("ps")["jobs"]].count("running") == 4)
        assert [each["rule"] for each in place.json("queue")["queue"]] == ["family", "family"]
    eventually(lambda: not place.json("ps")["jobs"])
    assert [job["exit_code"] for job in place.json("ps", "--all")["jobs"]] == [0] * 6


def test_a_size_that_somebody_said_meanwhile_is_not_estimated_any_more(place: Place, eventually: Eventually) -> None:
    place.run("submit", "--name", "blocker", "--memory", "20GiB", "--", "sleep", "600")
    place.run("submit", "--name", "waiting", "--", "python", "hold.py", "10")
    assert place.job("waiting")["request"]["basis"] == "unknown"
    assert place.run("resize", "waiting", "--memory", "2GiB").returncode == 0
    eventually(lambda: place.job("waiting")["state"] == "exited")
    request = place.job("waiting")["request"]
    assert (request["memory_bytes"], request["basis"]) == (2 * GIB, None)


def test_what_a_program_holds_that_takes_what_it_sees_is_not_shrunk(place: Place, eventually: Eventually) -> None:
    """One beside it that holds little, and came to hold it later, has been looked at as often by the time it is shrunk."""
    place.environment["PGPU_SIMULATE"] = "RTX 3090x2"
    (place.path / "most.py").write_text(
        HOLDER.replace("for mib in sys.argv[1:]:", "for mib in [cuda.cuMemGetInfo()[1] * 6 // 10 >> 20]:")
    )
    with held_back(place):
        place.run("submit", "--name", "greedy", "--", "python", "most.py")
        eventually(lambda: place.run("logs", "greedy").stdout.endswith(" 0\n"))
        place.run("submit", "--name", "modest", "--", "python", "hold.py", "3000")
        eventually(lambda: is_shrunk(place, "modest"))
        request = place.job("greedy")["request"]
        assert (request["basis"], request["memory_bytes"] > 22 * GIB) == ("unknown", True)


def test_a_job_that_hit_its_limit_is_tried_again_with_more_and_its_caller_hears_of_the_last_try_alone(
    place: Place,
) -> None:
    done = place.run("run", "--memory", "1GiB", "--retry-oom", "--", "python", "hold.py", "500", "800")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "500 0\n800 2\n500 0\n800 0\n"
    (job,) = place.json("ps", "--all")["jobs"]
    assert (job["attempt"], job["state"], job["exit_code"]) == (2, "exited", 0)
    assert job["request"]["memory_bytes"] >= 1.1 * (500 + 800 + 254) * MIB, "1.1 times what it attempted"
    (call,) = place.json("history")["calls"]
    assert [(run["exit_code"], run["refusals"]) for run in call["runs"]] == [(9, 1), (0, 0)]


def test_a_job_that_pgpu_shrank_and_that_then_needs_more_is_tried_again_with_more(
    place: Place, eventually: Eventually
) -> None:
    place.environment["PGPU_CHECKPOINTS"] = "off"  # else it leaves the GPU until that has what it needs
    go = held_back(place, "go")
    place.run("submit", "--name", "late", "--", "python", "late.py", "3000", "9000")
    eventually(lambda: is_shrunk(place, "late"))
    shrunk_bytes = place.job("late")["request"]["memory_bytes"]
    place.detach("beside", "14GiB", ("sleep", "600"))
    eventually(lambda: place.job("beside")["state"] == "running")
    go.close()
    eventually(lambda: place.job("late")["attempt"] == 2)
    place.run("stop", "--time", "0", "beside")
    eventually(lambda: place.job("late")["state"] == "exited")
    job = place.job("late")
    assert (job["attempt"], job["exit_code"]) == (2, 0), job["warning"]
    (call,) = [each for each in place.json("history")["calls"] if each["signature"].startswith("late.py@")]
    refused, well = call["runs"]
    assert (refused["exit_code"], well["exit_code"]) == (9, 0)
    assert refused["slice_bytes"] > 22 * GIB, "the largest that it had"
    assert refused["refused_at_bytes"] == shrunk_bytes


def test_after_three_tries_or_alone_on_the_gpu_a_job_that_does_not_fit_fails(place: Place) -> None:
    done = place.run("run", "--memory", "1GiB", "--retry-oom", "--", "python", "hold.py", "900", "1200", "22000")
    assert done.returncode == 9
    (job,) = place.json("ps", "--all")["jobs"]
    assert job["attempt"] == 3
    assert job["request"]["memory_bytes"] > 22 * GIB, "the last one had the GPU for itself"


def test_no_try_asks_for_more_than_its_owner_s_quota_and_whoever_had_that_is_told_why_it_ends(place: Place) -> None:
    set_quota(place, 2 * GIB)
    done = place.run("run", "--memory", "1GiB", "--retry-oom", "--", "python", "hold.py", "500", "3000")
    assert done.returncode == 9, done.stderr
    (job,) = place.json("ps", "--all")["jobs"]
    assert (job["attempt"], job["request"]["memory_bytes"]) == (2, 2 * GIB)
    assert "not tried again: its owner's quota allows no larger slice than 2 GiB" in done.stderr
    assert "its owner's quota" in job["warning"]


def test_the_time_a_job_may_wait_holds_for_its_later_tries(place: Place, eventually: Eventually) -> None:
    place.detach("blocker", "18GiB", ("sleep", "600"))
    eventually(lambda: place.job("blocker")["state"] == "running")
    done = place.run("run", "--memory", "4GiB", "--retry-oom", "--no-wait", "--", "python", "hold.py", "500", "4000")
    assert (done.returncode, done.stdout) == (124, "500 0\n4000 2\n")
    assert "not granted in time for try 2" in done.stderr
    job = place.json("ps", "--all")["jobs"][-1]
    assert (job["attempt"], job["state"], job["wait_timed_out"]) == (2, "cancelled", True)


def test_a_job_that_fails_for_another_reason_or_did_not_ask_is_not_tried_again(place: Place) -> None:
    assert place.run("run", "--memory", "1GiB", "--", "python", "hold.py", "2000").returncode == 9
    assert place.run("run", "--memory", "1GiB", "--retry-oom", "--", "false").returncode == 1
    assert [job["attempt"] for job in place.json("ps", "--all")["jobs"]] == [1, 1]


@pytest.mark.soak
def test_waiting_jobs_learn_from_runs_that_end_meanwhile(place: Place, eventually: Eventually) -> None:
    for _ in range(2):
        run_p2(place)
    held = held_back(place)
    place.run("submit", "--name", "third", "--", "python", "p2.py")
    eventually(lambda: place.job("third")["state"] == "running")
    place.run("submit", "--name", "blocker", "--memory", "20GiB", "--", "sleep", "600")
    eventually(lambda: place.job("blocker")["state"] == "running")
    place.run("submit", "--name", "fourth", "--", "python", "p2.py")
    assert place.job("fourth")["request"]["basis"] == "family"
    held.close()
    eventually(lambda: place.job("fourth")["state"] == "exited")
    assert place.job("fourth")["request"]["basis"] == "history"
    assert place.job("blocker")["state"] == "running", "it started beside it, in what it needs"


def check(document: Any, schema: str) -> None:
    import pgpu.cli  # noqa: PLC0415 - only its place is wanted

    directory = Path(pgpu.cli.__file__).parent / "schemas"
    from referencing import Registry, Resource  # noqa: PLC0415 - only here

    files = {path.name: Resource.from_contents(json.loads(path.read_text())) for path in directory.glob("*.json")}
    registry: Registry[Any] = Registry().with_resources(files.items())
    jsonschema.Draft202012Validator(json.loads((directory / schema).read_text()), registry=registry).validate(document)
