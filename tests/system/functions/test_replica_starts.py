"""How a replica comes up, or does not, and what its callers hear meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from tests.system.functions.replicas import answer_of, replica
from tests.waiting import is_over, until


def test_a_cold_function_answers_everybody_after_one_start(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cold = replica("SlowToStart", is_ready=False, arguments={"gate": str(gate)})
    with cold as started, ThreadPoolExecutor(50) as callers:
        answers = [callers.submit(started.call, {}) for _ in range(50)]
        until(lambda: started.metric("pgpu_function_in_flight") == 50)
        assert started.health["state"] == "starting"
        gate.touch()
        values = [each.result() for each in answers]
        assert {each.status for each in values} == {200}
        assert len({each.value for each in values}) == 1
        assert "load;dur=0," not in values[0].headers["server-timing"]
        assert started.metric("pgpu_function_worker_starts_total") == 1


def test_a_constructor_that_hangs_is_ended_and_its_callers_told(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with replica("SlowToStart", is_ready=False, arguments={"gate": str(gate)}, startup_timeout=1.0) as started:
        refused = started.call({})
        assert (refused.status, refused.value["code"]) == (503, "starting_timeout")
        assert started.health["reason"] == "starting_timeout"
        gate.touch()
        until(lambda: started.call({}).status == 200)


def test_a_constructor_that_raises_is_tried_again_until_that_is_hopeless(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    with replica("Broken", is_ready=False, arguments={"until": str(mended)}) as started:
        refused = started.call({})
        assert (refused.status, refused.value["code"]) == (503, "crash_loop")
        assert "retry-after" in refused.headers
        health = started.health
        assert (health["state"], health["reason"]) == ("failed", "RuntimeError")
        assert started.log.read_text().count("RuntimeError: no weights") == 5


def test_a_constructor_that_succeeds_later_serves_who_waited(tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    with replica("Broken", is_ready=False, arguments={"until": str(mended)}) as started:
        waiting = started.begin({})
        until(lambda: "no weights" in started.log.read_text())
        mended.touch()
        assert answer_of(waiting).body == b"mended"


def test_a_module_that_cannot_be_imported_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_package\nclass It:\n    def __call__(self): ...\n")
    with replica("It", source=tmp_path, module="broken.py", is_ready=False) as started:
        until(lambda: started.health["reason"] == "ModuleNotFoundError")
        assert "no_such_package" in started.log.read_text()
        (tmp_path / "broken.py").write_text("class It:\n    def __call__(self) -> int: return 1\n")
        assert started.call({}).value == 1


def test_a_zygote_whose_socket_is_held_by_its_modules_child_is_replaced_as_well(tmp_path: Path) -> None:
    code = "import os, threading\nif not os.fork():\n    threading.Event().wait(60)\n    os._exit(0)\ndef f(): return os.getpid()"
    (tmp_path / "forks.py").write_text(code)
    with replica("f", source=tmp_path, module="forks.py") as started:
        zygote = psutil.Process(started.process.pid).children()[0]
        (held,) = zygote.children()[:1]
        zygote.kill()
        until(lambda: started.health["restarts"] == 1)
        assert started.call({}).status == 200
        until(lambda: is_over(held))
        started.process.terminate()
        assert started.process.wait() == 0


def test_what_a_module_prints_is_in_the_log_once_and_what_a_worker_prints_before_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import os\n"
        "print('imported', end='')\n"
        "def it(last: bool) -> int:\n"
        "    print('called')\n"
        "    if last: os.kill(os.getpid(), 9)\n"
        "    return 1\n"
    )
    with replica("it", source=tmp_path, module="printing.py") as started:
        assert started.call({"last": True}).status == 502
        assert started.call({"last": False}).status == 200
        log = started.log.read_text()
        assert (log.count("imported"), log.count("called")) == (1, 2)


def test_a_worker_that_says_it_is_ill_is_replaced(tmp_path: Path) -> None:
    with replica("Ill", arguments={"notes": str(tmp_path / "ill")}, options=["--health-seconds", "0.05"]) as started:
        pid = started.call({}).value
        (tmp_path / "ill").write_text(str(pid))
        until(lambda: started.health["restarts"] == 1)
        assert started.call({}).value != pid


def test_a_worker_whose_health_hangs_is_replaced_whether_somebody_calls_or_not(tmp_path: Path) -> None:
    options = ["--health-seconds", "0.05"]
    with replica("Ill", arguments={"notes": str(tmp_path / "ill")}, options=options, timeout=0.5) as started:
        (tmp_path / "ill").write_text(f"hang {started.call({}).value}")
        until(lambda: started.health["restarts"] == 1)
        (tmp_path / "ill").write_text(f"hang {started.call({}).value}")
        until(lambda: started.call({}).status == 200 and started.health["restarts"] == 2)


def test_a_front_that_leaves_takes_its_sockets_along_and_waits_for_no_constructor(tmp_path: Path) -> None:
    with replica("SlowToStart", is_ready=False, arguments={"gate": str(tmp_path / "gate")}) as started:
        until(lambda: psutil.Process(started.process.pid).children(recursive=True)[1:])
        assert started.socket.exists()
        started.process.terminate()
        assert started.process.wait() == 0
        assert [path.name for path in started.directory.iterdir()] == ["log"]


def test_a_replica_of_an_earlier_version_s_job_starts_by_its_former_name() -> None:
    with replica("Echo", program="pgpu.functions.front") as started:
        assert started.call({}).status == 200
