"""The real `pgpu` on a simulated GPU: processes in slices, from the command line to the driver and back."""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.waiting import DEADLINE_SECONDS

from pgpu.units import GIB, MIB

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def place(either_place: Place) -> Place:
    """Run everything here against the engine of each command and against a server."""
    return either_place


def test_a_job_s_streams_and_exit_code_are_its_own(place: Place) -> None:
    done = place.run("run", "--memory", "2GiB", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == "out\n"
    assert "err\n" in done.stderr
    assert "simulated rtx-3090" in done.stderr


def test_a_hog_is_refused_at_its_slice_and_keeps_running(place: Place) -> None:
    done = place.run("run", "--memory", "2GiB", "--", "python", "-m", "pgpu.workloads", "hog", "--seconds", "0.2")
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout.splitlines()[-1])["held_bytes"]
    assert 1.9 * GIB <= held <= 2 * GIB


def test_a_job_sees_a_gpu_of_the_size_of_its_slice(place: Place) -> None:
    code = "from cuda.bindings import driver as d; d.cuInit(0); print(int(d.cuDeviceTotalMem(0)[1]))"
    done = place.run("run", "--memory", "3GiB", "--", "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3 * GIB


def test_stdin_reaches_an_interactive_job_and_no_other(place: Place) -> None:
    assert place.run("run", "-i", "--memory", "2GiB", "cat", stdin="hello\n").stdout == "hello\n"
    assert place.run("run", "--memory", "2GiB", "cat", stdin="hello\n").stdout == ""


def test_much_output_arrives_whole(place: Place) -> None:
    done = place.run("run", "--memory", "2GiB", "--", "sh", "-c", "seq 200000")
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 200001))


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("/nowhere/at/all", 127, "/nowhere/at/all"),
        ("no-such-command-anywhere", 127, "no-such-command"),
        ("/etc/hosts", 126, "/etc/hosts"),
    ],
)
def test_a_command_that_cannot_run_has_docker_s_exit_codes(place: Place, command: str, code: int, says: str) -> None:
    done = place.run("run", "--memory", "2GiB", "--", command)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_ended_by_a_signal_has_128_and_its_number(place: Place) -> None:
    assert place.run("run", "--memory", "2GiB", "--", "sh", "-c", "kill -TERM $$").returncode == 143


def test_environment_and_directory_are_the_asker_s(place: Place) -> None:
    script = "pwd; echo $ASKED $SET"
    done = place.run("run", "--memory", "2GiB", "-e", "SET=too", "--", "sh", "-c", script, ASKED="yes")
    assert done.stdout == f"{place.path}\nyes too\n"


def test_what_does_not_fit_is_not_granted_in_time(place: Place) -> None:
    place.detach("big", "20GiB", ["sleep", "600"])
    for words in (["--no-wait"], ["--wait-timeout", "100ms"]):
        done = place.run("run", "--memory", "20GiB", *words, "--", "true")
        assert done.returncode == 124
        assert len(done.stderr.splitlines()) <= 3


def test_a_waiting_job_says_why_and_starts_when_there_is_room(place: Place) -> None:
    place.detach("big", "20GiB", ["sleep", "600"])
    place.detach("next", "10GiB", ["true"])
    waiting = place.job("next")
    assert waiting["state"] == "waiting"
    assert waiting["reason"]
    place.run("stop", "--time", "0", "big")
    assert place.run("wait", "next").stdout == "0\n"


def test_ctrl_c_while_waiting_cancels(place: Place, eventually: Eventually) -> None:
    place.detach("big", "20GiB", ["sleep", "600"])
    asker = place.start("run", "--name", "gone", "--memory", "20GiB", "--", "true")
    eventually(lambda: (place.job("gone") or {}).get("state") == "waiting")
    asker.send_signal(signal.SIGINT)
    _, said = asker.communicate(timeout=DEADLINE_SECONDS)
    assert asker.returncode == 130
    assert "Traceback" not in said
    assert place.job("gone")["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_running_reaches_the_job(place: Place, number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    asker = place.start("run", "--memory", "2GiB", "--", "sh", "-c", script)
    assert asker.stdout is not None
    assert asker.stdout.readline() == "ready\n"
    asker.send_signal(number)
    rest, _ = asker.communicate(timeout=DEADLINE_SECONDS)
    assert rest == "caught\n"
    assert asker.returncode == 5


def test_a_job_outlives_its_asker_s_death(place: Place, eventually: Eventually) -> None:
    asker = place.start("run", "--name", "heir", "--memory", "2GiB", "--", "sleep", "600")
    eventually(lambda: (place.job("heir") or {}).get("state") == "running")
    asker.kill()
    asker.communicate()
    assert place.job("heir")["state"] == "running"
    place.run("stop", "--time", "0", "heir")
    assert place.job("heir")["state"] == "exited"


def test_ps_finds_jobs_by_name_and_beginning_of_id(place: Place) -> None:
    job_id = place.detach("one", "2GiB", ["sleep", "600"])
    assert re.fullmatch(r"[0-9a-f]{12}", job_id)
    shown = place.run("ps").stdout
    assert job_id in shown
    assert "one" in shown
    assert place.run("stop", "--time", "0", job_id[:6]).returncode == 0
    assert place.run("ps", "--quiet").stdout == ""
    assert place.run("ps", "--all", "--quiet").stdout == f"{job_id}\n"


def test_a_name_belongs_to_one_live_job(place: Place) -> None:
    place.detach("one", "2GiB", ["sleep", "600"])
    second = place.run("run", "--name", "one", "--memory", "2GiB", "--", "true")
    assert second.returncode == 125
    assert "one" in second.stderr


def test_logs_are_kept_and_followed(place: Place) -> None:
    place.detach("talks", "2GiB", ["sh", "-c", "echo 1; echo e >&2; echo 2; sleep 0.3; echo 3"])
    followed = place.run("logs", "--follow", "talks")
    assert followed.stdout == "1\n2\n3\n"
    assert followed.stderr == "e\n"
    assert place.run("logs", "--tail", "1", "talks").stdout == "3\n"
    place.run("wait", "talks")
    assert place.run("logs", "talks").stdout == "1\n2\n3\n"


def test_stop_asks_first_and_then_kills(place: Place, eventually: Eventually) -> None:
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
    place.detach("stubborn", "2GiB", ["sh", "-c", script])
    eventually(lambda: place.run("logs", "stubborn").stdout == "ready\n")
    stopped = place.run("stop", "--time", "300ms", "stubborn")
    assert stopped.returncode == 0
    assert place.job("stubborn")["exit_code"] == 137
    assert "asked" in place.run("logs", "stubborn").stdout


def test_resize_changes_a_running_slice(place: Place) -> None:
    job_id = place.detach("grows", "4GiB", ["sleep", "600"])
    assert place.run("resize", "grows", "--memory", "8GiB").stdout == f"{job_id}\n"
    assert place.job("grows")["lease"]["slices"][0]["memory_bytes"] == 8 * GIB
    refused = place.run("resize", "grows", "--memory", "25GiB")
    assert refused.returncode == 125
    assert place.job("grows")["lease"]["slices"][0]["memory_bytes"] == 8 * GIB


def test_resize_needs_no_word_on_which_gpu_is_simulated(place: Place) -> None:
    place.detach("grows", "4GiB", ["sleep", "600"])
    place.environment.pop("PGPU_SIMULATE")
    assert place.run("resize", "grows", "--memory", "8GiB").returncode == 0
    assert place.job("grows")["request"]["memory_bytes"] == 8 * GIB


def test_gpus_show_what_is_granted_and_used(place: Place, eventually: Eventually) -> None:
    place.detach("hog", "2GiB", ["python", "-m", "pgpu.workloads", "hog", "--seconds", "600"])
    eventually(lambda: place.job("hog")["lease"] and place.job("hog")["lease"]["slices"][0]["refusals"])
    gpu = place.json("gpus")["gpus"][0]
    assert gpu["granted_bytes"] == 2 * GIB
    assert 1.9 * GIB <= gpu["used_bytes"] <= 2 * GIB
    assert gpu["is_simulated"]
    assert gpu["memory_bytes"] == 24_265 * MIB
    assert gpu["enforcer"] == "shim"
    top = place.run("top").stdout
    assert "hog" in top
    assert "simulated" in top


def test_four_gpus_give_a_job_of_two_two_slices(place: Place) -> None:
    place.environment["PGPU_SIMULATE"] = "RTX 3090x4"
    code = "from cuda.bindings import driver as d; d.cuInit(0); print(int(d.cuDeviceGetCount()[1]))"
    done = place.run("run", "--gpus", "2", "--memory", "2GiB", "--", "python", "-c", code)
    assert done.stdout == "2\n", done.stderr
    assert len(place.json("gpus")["gpus"]) == 4


def test_a_terminal_is_a_terminal(place: Place) -> None:
    master, slave = pty.openpty()
    words = [str(PGPU), "run", "-it", "--memory", "2GiB", "--", "sh", "-c", "test -t 0 && test -t 1 && echo terminal"]
    done = subprocess.Popen(
        words, env=place.environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 4096):
            text += chunk
    except OSError:
        pass  # Linux says EIO where the last user of the other side is gone.
    os.close(master)
    assert done.wait(60) == 0, text
    assert b"terminal\r\n" in text


def test_a_closed_reader_is_no_traceback(place: Place) -> None:
    words = f"{PGPU} run --memory 2GiB -- seq 1000000 | head -1"
    done = subprocess.run(
        ["bash", "-c", words],
        env=place.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.stdout == "1\n"
    assert "Traceback" not in done.stderr


def test_nothing_is_left_of_a_job_that_ended(place: Place, eventually: Eventually) -> None:
    place.run("run", "--memory", "2GiB", "--", "true")
    folders = [folder for name in ("slices", "jobs") for folder in (place.path / "run").glob(f"*/{name}")]
    eventually(lambda: not [path for folder in folders for path in Path(folder).iterdir()])
    assert place.json("gpus")["gpus"][0]["granted_bytes"] == 0
