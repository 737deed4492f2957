"""The agent of the fake machine: `agent.py ROOT MODEL LOCK [GUARD]`."""

import os
import select
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from sqlite3 import Connection

    from pgpu.engine.agent.containers import SubmissionTurn
    from pgpu.engine.engine import Engine
    from pgpu.engine.event_loop import EventLoop

DIE_AT_COMMIT = "die-at-commit"

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    from tests.fakes.machine import make_engine  # noqa: PLC0415 - after the path is set

    from pgpu.engine.agent.agent import run_agent  # noqa: PLC0415 - likewise
    from pgpu.engine.agent.agents import TAKE_LOCK, take_lock  # noqa: PLC0415 - likewise
    from pgpu.engine.settings import EngineSettings  # noqa: PLC0415 - likewise
    from pgpu.runtimes.job_monitor import become_guard  # noqa: PLC0415 - likewise
    from pgpu.runtimes.kept_descriptors import use_guard  # noqa: PLC0415 - likewise

    root, model = Path(sys.argv[1]), sys.argv[2]
    if not (root / "settings.json").exists():
        return
    lock = take_lock(EngineSettings(root / "state", root / "run"), model, int(sys.argv[3]))
    if lock is None:
        return
    again, engine = (sys.executable, __file__, str(root), model), make_engine(root)
    if int(sys.argv[3]) == TAKE_LOCK:
        become_guard(lock, engine.settings.spool, again)
    use_guard(int(sys.argv[4]))
    die_at_a_commit(root / DIE_AT_COMMIT, engine)
    run_agent(engine, lambda _job_id: engine, attend_container, lock, again)
    os._exit(0)


def die_at_a_commit(order: Path, engine: "Engine") -> None:
    """Kill this process at the commit that a file names once it is there: `before 3` is in front of the third one from then on."""
    writing, lock = engine.ledger._connections.writing, threading.Lock()

    def count(moment: str) -> None:
        with lock, suppress(FileNotFoundError):
            wanted, left = order.read_text().split()
            if wanted == moment and left == "1":
                order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if wanted == moment:
                order.write_text(f"{wanted} {int(left) - 1}")

    @contextmanager
    def counted() -> "Iterator[Connection]":
        with writing() as connection:
            yield connection
            count("before")
        count("after")

    engine.ledger._connections.writing = counted  # type: ignore[method-assign]


def attend_container(
    engine: "Engine", job_id: str, turn: "SubmissionTurn", _make_loop: "Callable[[], EventLoop]"
) -> "Iterator[EventLoop]":
    """Write which process attends the container, and attend it until the test removes its first process's PID file."""
    home = engine.settings.runtime_directory / "slices" / job_id
    with turn, (engine.settings.state_directory / "order").open("a", encoding="ascii") as order:
        order.write(f"{job_id}\n")
    (home / "attended").write_text(str(os.getpid()))
    while (home / "pid").exists():
        select.select([], [], [], 0.01)
    yield from ()
    (home / "container.json").unlink()


if __name__ == "__main__":
    main()
