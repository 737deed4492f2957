"""`pgpu dev` as its user meets it: a URL, edits that arrive, edits that do not start, and nothing left behind."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from tests.system.dev_sessions import PGPU, Dev, dev
from tests.waiting import is_over, until

CODE = """
import os

class Adder:
    def __init__(self):
        self.added = ADDED

    def __call__(self, x: int) -> dict:
        return {"sum": x + self.added, "worker": os.getpid()}
"""
GPU_CODE = """
import pgpu

@pgpu.function(memory="1GiB")
class Memory:
    def __init__(self):
        from pgpu.workloads.cuda_driver import Device
        self.device = Device()

    def __call__(self) -> dict:
        return {"total": self.device.memory_bytes()[1], "version": 1}
"""


@contextmanager
def asking(running: Dev) -> Iterator[list[int]]:
    """Ask again and again, and give the answers; one that is no answer stops it and is none of them."""
    sums: list[int] = []
    stop = Event()

    def ask() -> None:
        while not stop.wait(0.005):
            sums.append(-1)
            sums[-1] = running.ask({"x": 1})["sum"]

    thread = Thread(target=ask)
    thread.start()
    try:
        yield sums
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    return directory


def test_an_edit_arrives_and_one_that_does_not_start_leaves_the_code_before_it(source: Path) -> None:
    with dev(source, CODE.replace("ADDED", "1")) as running:
        first = running.ask({"x": 1})
        assert first["sum"] == 2
        assert any("""curl --json '{"x": 1}'""" in line for line in running.said("curl"))

        running.write("import nothing_of_this_name\n")
        assert "nothing_of_this_name" in running.said("does not start")[0]
        running.write(CODE)
        assert "NameError" in running.said("does not start", 2)[1]
        running.said("goes on serving", 2)
        assert running.ask({"x": 1}) == first

        with asking(running) as sums:
            running.write(CODE.replace("ADDED", "10"))
            running.said("is ready", 2)
            until(lambda: 11 in sums)
        assert sums == sorted(sums), "nobody who asked meanwhile was refused, or met the old code after the new one"
        until(lambda: not psutil.pid_exists(first["worker"]))


def test_an_edit_within_the_same_second_that_leaves_the_size_is_served(source: Path) -> None:
    with dev(source, CODE.replace("ADDED", "1"), environment={"PYTHONDONTWRITEBYTECODE": ""}) as running:
        assert running.ask({"x": 1})["sum"] == 2
        path, edited = source / "app.py", source.with_name("edited.py")
        before_ns = path.stat().st_mtime_ns
        edited.write_text(CODE.replace("ADDED", "5"), "utf-8")
        same_second_ns = before_ns // 10**9 * 10**9 + (before_ns + 1000) % 10**9
        os.utime(edited, ns=(same_second_ns, same_second_ns))
        edited.rename(path)
        running.said("is ready", 2)
        assert running.ask({"x": 1})["sum"] == 6


def test_code_that_never_started_is_waited_for_and_has_the_declared_variables(source: Path) -> None:
    (source / "pgpu.toml").write_text('[function.adder]\napp = "app.py:Adder"\nenv = { ADDED = "3" }\n')
    with dev(source, "def broken(:\n") as running:
        assert "SyntaxError" in running.said("does not start")[0]
        running.write(CODE.replace("ADDED", 'int(__import__("os").environ["ADDED"])'))
        assert running.ask({"x": 1})["sum"] == 4


def test_no_process_outlives_one_that_is_killed(source: Path) -> None:
    (source / "app.py").write_text(CODE.replace("ADDED", "1"), "utf-8")
    process = subprocess.Popen(
        (*PGPU, "dev", "app.py:Adder", "--port", "0"), cwd=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    killed = psutil.Process(process.pid)
    family = until(lambda: found if len(found := killed.children(recursive=True)) >= 3 else [])
    process.kill()
    process.wait()
    until(lambda: all(is_over(each) for each in family))


def test_a_function_that_asks_for_gpu_memory_runs_in_a_slice_and_makes_room_for_its_next_version(
    source: Path, tmp_path: Path
) -> None:
    state = {"PGPU_STATE_DIR": str(tmp_path / "state")}
    code = GPU_CODE.replace("1GiB", "14GiB")
    with dev(source, code, "--simulate", "V100", app="app.py", environment=state) as running:
        assert running.ask({}) == {"total": 14 << 30, "version": 1}
        running.write(GPU_CODE.replace("1GiB", "13GiB").replace('"version": 1', '"version": 2'))
        running.said("no room on the GPU for both")
        running.said("is ready", 2)
        assert running.ask({}) == {"total": 13 << 30, "version": 2}


KINDS = """
from collections.abc import AsyncIterator, Iterator

class Doubler:
    def __init__(self, times: int = 2):
        self.times = times

    def __call__(self, x: int) -> list[int]:
        return [x] * self.times

instance = Doubler(2)

def plain(x: int) -> list[int]:
    return [x, x]

async def waits(x: int) -> list[int]:
    return [x, x]

def streams(x: int) -> Iterator[int]:
    yield x
    yield x

async def streams_waiting(x: int) -> AsyncIterator[int]:
    yield x
    yield x

async def application(scope, receive, send):
    body = (await receive())["body"]
    number = body.removeprefix(b'{"x": ').removesuffix(b"}")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"[%b, " % number, "more_body": True})
    await send({"type": "http.response.body", "body": b"%b]" % number})
"""


@pytest.mark.parametrize("name", ["instance", "plain", "waits", "streams", "streams_waiting", "application"])
def test_every_kind_of_callable_is_served(source: Path, name: str) -> None:
    with dev(source, KINDS, app=f"app.py:{name}") as running:
        assert running.ask({"x": 3}) == [3, 3]
