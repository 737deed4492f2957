"""`pgpu submit`, `queue` and `cancel` and the watchdog from the command line, on a simulated GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place, served_place

from pgpu.libraries import SIMULATED_CUDA, library_path

Eventually = Callable[[Callable[[], Any]], Any]

JOBS = """
[defaults]
memory = "1GiB"

[jobs.report]
command = "cat numbers"
after = "sweep"

[jobs.sweep]
command = ["sh", "-c", "echo $PGPU_ARRAY_INDEX >> numbers"]
array = "1-9:4%1"
"""

OUTSIDER = """
import ctypes, sys
cuda, context, address = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)) == 0
print("holds", flush=True)
sys.stdin.read()
"""


def start_outsider(place: Place) -> "subprocess.Popen[str]":
    """Hold a GiB of the place's simulated GPU, as a program does that knows nothing of pgpu."""
    [directory] = (Path(place.environment["PGPU_RUNTIME_DIR"])).rglob("simulated/*")
    command = [sys.executable, "-c", OUTSIDER, str(library_path(SIMULATED_CUDA))]
    environment = {**place.environment, "PGPU_SIMGPU_DIR": str(directory)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
    place.started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    return process


def test_a_file_of_jobs_runs_in_its_order(either_place: Place) -> None:
    (either_place.path / "jobs.toml").write_text(JOBS)
    done = either_place.run("submit", "jobs.toml")
    assert done.returncode == 0, done.stderr
    array_id, report_id = done.stdout.split()
    assert "4 jobs run on a simulated" in done.stderr
    assert either_place.run("wait", report_id, array_id).stdout == "0\n" * 4
    assert either_place.run("logs", "report").stdout.split() == ["1", "5", "9"]


def test_a_bad_file_of_jobs_leaves_nothing_behind(either_place: Place) -> None:
    for text in (JOBS.replace('"1GiB"', '"99GiB"'), JOBS.replace('after = "sweep"', 'after = "weep"')):
        (either_place.path / "jobs.toml").write_text(text)
        done = either_place.run("submit", "jobs.toml")
        assert done.returncode == 125
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) <= 2
    assert either_place.run("ps", "--all", "--quiet").stdout == ""


def test_the_queue_says_why_and_until_when_and_cancel_empties_it(either_place: Place, eventually: Eventually) -> None:
    either_place.detach("holder", "20GiB", ["sleep", "600"])
    eventually(lambda: either_place.job("holder")["state"] == "running")
    submit = ("submit", "--memory", "10GiB")
    assert either_place.run(*submit, "--name", "low", "--priority", "low", "--", "true").returncode == 0
    assert either_place.run(*submit, "--name", "high", "--priority", "high", "--", "true").returncode == 0
    assert (
        either_place.run(*submit, "--name", "sweep", "--array", "0-1", "--after", "low", "--", "true").returncode == 0
    )
    queue = either_place.json("queue")["queue"]
    shown = [(each["position"], each["job"]["name"]) for each in queue]
    assert shown == [(1, "high"), (2, "low"), (None, "sweep-0"), (None, "sweep-1")]
    assert queue[0]["job"]["reason"].startswith("waits for 10 GiB on one GPU: 2.99 GiB free of 22.99 GiB")
    assert {each["job"]["expected_start_seconds"] for each in queue} == {None}, "no job of its programs has ended here"
    assert not any(each["is_start_known"] for each in queue)
    refused = either_place.run("run", "--no-wait", "--memory", "10GiB", "true")
    assert refused.returncode == 124
    line, hint = [line for line in refused.stderr.splitlines() if "simulated" not in line]
    assert "not granted in time: it waits for 10 GiB on one GPU: 2.99 GiB free of 22.99 GiB" in line
    cause = f"job {either_place.job('holder')['id']} ends before, and no earlier run of its program has ended here"
    assert hint == f"pgpu: hint: without --no-wait when it would start is unknown: {cause}"
    explained = either_place.run("queue", "low").stdout
    assert "place 2 of 2" in explained  # the jobs that are held have no place
    assert "rule     turn: it fits" in explained or "rule     memory: a slice is granted only" in explained
    assert f"starts   unknown: {cause}" in explained
    assert len(either_place.run("cancel", "low", "high").stdout.split()) == 2
    eventually(lambda: "low" in either_place.job("sweep-1")["reason"])  # its keeper cancels it in a later round
    assert either_place.json("queue")["queue"] == []
    assert either_place.run("cancel", "--time", "0", "holder").returncode == 0
    assert [either_place.job(name)["state"] for name in ("low", "sweep-0", "holder")] == [
        "cancelled",
        "cancelled",
        "exited",
    ]


def test_run_after_a_failure_is_refused_and_after_a_running_job_waits(
    either_place: Place, eventually: Eventually
) -> None:
    either_place.detach("fails", "1GiB", ["false"])
    eventually(lambda: either_place.job("fails")["state"] == "exited")
    done = either_place.run("run", "--memory", "1GiB", "--after", "fails", "--", "true")
    assert done.returncode == 125
    assert "would never start" in done.stderr
    either_place.detach("works", "1GiB", ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"])
    waiting = either_place.start("run", "--memory", "1GiB", "--after", "works", "--name", "later", "--", "echo", "ran")
    eventually(lambda: (either_place.job("later") or {}).get("reason"))
    (either_place.path / "go").touch()
    output, errors = waiting.communicate()
    assert (output, waiting.returncode) == ("ran\n", 0), errors


def test_a_process_outside_every_lease_is_shown_by_gpus(either_place: Place, eventually: Eventually) -> None:
    either_place.detach("job", "2GiB", ["python", "-m", "pgpu.workloads", "hog", "--seconds", "600"])
    eventually(lambda: any(gpu["used_bytes"] > 1 << 30 for gpu in either_place.json("gpus")["gpus"]))
    assert either_place.json("gpus")["gpus"][0]["outsiders"] == []
    outsider = start_outsider(either_place)
    [shown] = either_place.json("gpus")["gpus"][0]["outsiders"]
    assert (shown["pid"], shown["uid"]) == (outsider.pid, os.getuid())
    assert shown["used_bytes"] >= 1 << 30
    done = either_place.run("gpus")
    assert f"process {outsider.pid}" in done.stderr
    assert "outside of every lease" in done.stderr
    outsider.kill()
    outsider.wait()
    eventually(lambda: either_place.json("gpus")["gpus"][0]["outsiders"] == [])


@pytest.mark.parametrize("answer", ["report", "stop"])
def test_a_process_outside_every_lease_is_stopped_only_where_that_is_set(
    place: Place, eventually: Eventually, answer: str
) -> None:
    place.environment.update(PGPU_ON_OUTSIDER=answer, PGPU_STOP_GRACE="1s")
    place.detach("job", "2GiB", ["sleep", "600"])
    eventually(lambda: place.job("job")["state"] == "running")
    outsider = start_outsider(place)
    kinds = ["outsider", "outsider-stopped"] if answer == "stop" else ["outsider"]
    eventually(lambda: set(kinds) <= set(_events(place)))
    if answer == "stop":
        outsider.wait(60)
        eventually(lambda: "outsider-gone" in _events(place))
    else:
        assert outsider.poll() is None
    assert place.job("job")["state"] == "running"


def _events(place: Place) -> list[str]:
    code = (
        "import json, sys; from pathlib import Path; from pgpu.ledger import Ledger;"
        "print(json.dumps([event.kind for event in Ledger(Path(sys.argv[1])).events.after(0, 1000)]))"
    )
    done = place.run_python("-c", code, str(place.path / "state" / "ledger.db"))
    kinds: list[str] = json.loads(done.stdout)
    return kinds


@pytest.mark.soak
def test_a_server_looks_though_no_job_runs_and_ps_marks_what_it_saw(eventually: Eventually) -> None:
    with served_place() as place:
        assert place.run("gpus").returncode == 0
        outsider = start_outsider(place)
        eventually(lambda: f"process {outsider.pid}" in place.run("ps").stderr)
        outsider.kill()
        outsider.wait()
        eventually(lambda: "outside of every lease" not in place.run("ps").stderr)


def test_settings_that_change_between_two_jobs_of_one_agent_hold_for_the_second(place: Place) -> None:
    words = ("--memory", "1GiB", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(place.run("run", "--name", "long", *words).stdout) == 3_000_000
    settings = Path(place.environment["XDG_CONFIG_HOME"]) / "pgpu/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("log_cap = '1MiB'\n")
    assert place.run("run", "--name", "short", *words).returncode == 0
    settings.unlink()
    assert place.run("run", "--name", "again", *words).returncode == 0
    kept = [len(place.run("logs", name).stdout) for name in ("long", "short", "again")]
    assert kept[0] == kept[2] == 3_000_000
    assert kept[1] < 2_000_000


def test_each_unknown_start_has_its_own_cause(place: Place, eventually: Eventually) -> None:
    place.detach("holder", "20GiB", ["sleep", "600"])
    place.run("submit", "--memory", "20GiB", "--name", "next", "true")
    place.run("submit", "--gpus", "0", "--name", "one", "--array", "0-1%1", "--", "sleep", "600")
    eventually(lambda: place.job("one-0")["state"] == "running")
    place.run("submit", "--gpus", "0", "--name", "after", "--after", "one", "true")
    place.run("submit", "--memory", "20GiB", "--name", "many", "--array", "0-200", "true")
    holder = place.job("holder")["id"]
    found = {each["job"]["name"]: (each["doubt"], each["doubted"]) for each in place.json("queue")["queue"]}
    assert [found[name] for name in ("next", "one-1", "after", "many-200")] == [
        ("unmeasured", holder),
        ("held", None),
        ("after", None),
        ("far", None),
    ]
    assert f"job {holder} ends before" in place.run("queue", "next").stdout
    assert place.run("cancel", "many", "next", "one", "after", "holder").returncode == 0


def test_usage_adds_up_runs_and_a_slice_that_was_never_used_is_all_waste(either_place: Place) -> None:
    done = either_place.run("run", "--memory", "2GiB", "--time-limit", "0.2s", "--", "sleep", "600")
    assert (done.returncode, "it has run for its time limit" in done.stderr) == (124, True)
    [user] = either_place.json("usage", "--user", str(os.getuid()))["users"]
    assert user["runs"] == 1
    assert user["gpu_seconds"] > 0
    assert user["byte_seconds"] > 0
    assert user["used_byte_seconds"] == 0
    assert "100%" in either_place.run("usage").stdout
