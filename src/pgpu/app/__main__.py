"""`python -m pgpu.app … agent MODEL LOCK [GUARD]`: the program of the agent of one queue; in units of systemd `pgpu-agent`.

Not for users: errors go to the job's record or to a log in the state directory.
"""

import argparse
import ctypes
import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgpu.app.settings import Settings

_OBJECTS_BETWEEN_COLLECTIONS = 50_000

_M_ARENA_MAX = -8
"""malloc.h"""

_MOST_ARENAS = 2
_SWITCH_SECONDS = 0.02


def main() -> None:
    """Run as the agent of a queue."""
    # Before all other imports: what they create lives to the end, so collections in between free nothing.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from pgpu.app.composition import supervise
    from pgpu.app.settings import load_settings
    from pgpu.engine.agent.agents import REAL_GPUS

    parser = argparse.ArgumentParser(prog="python -m pgpu.app", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--runtime-dir")
    verbs = parser.add_subparsers(dest="verb", required=True)
    # `keep` and `supervise` are started by processes of the release before this one.
    verbs.add_parser("supervise").add_argument("job_id")
    agent = verbs.add_parser("agent", aliases=["keep"])
    agent.add_argument("gpu_model", help="empty, or as the instance of a unit `gpus`, for real GPUs")
    agent.add_argument("lock", type=int, help="descriptor that holds the agent's lock; -1 for none, -2 to wait for it")
    # Without it under a guard of the release before this one.
    agent.add_argument("guard", type=int, nargs="?", help="descriptor of a socket to the agent's guard")
    arguments = parser.parse_args()
    settings = load_settings({"state_dir": arguments.state_dir, "runtime_dir": arguments.runtime_dir})
    if arguments.verb == "supervise":
        supervise(settings, arguments.job_id)
    else:
        model = None if arguments.gpu_model in {"", REAL_GPUS} else arguments.gpu_model
        run(settings, model, arguments.lock, arguments.guard)


def run(settings: "Settings", gpu_model: str | None, lock: int, guard: int | None) -> None:
    """Be the agent of a queue until no job of it waits or runs.

    Args:
        settings: Settings of the process that started this one.
        gpu_model: Which queue; None for real GPUs.
        lock: See `take_lock`.
        guard: Descriptor of a socket to this process's guard; None for none.

    Raises:
        PgpuError: This machine or its settings do not allow an engine.
    """
    from pgpu.app.composition import EnginesOfJobs, agent_command, make_engine, open_ledger
    from pgpu.app.oci.attendant import attend_container
    from pgpu.app.runtime_directory import runtime_directory
    from pgpu.engine.agent.agent import run_agent
    from pgpu.engine.agent.agents import take_lock
    from pgpu.engine.settings import EngineSettings
    from pgpu.errors import LedgerGoneError
    from pgpu.runtimes.job_monitor import become_guard
    from pgpu.runtimes.kept_descriptors import use_guard
    from pgpu.structs import replace

    try:
        open_ledger(settings).refuse_if_gone()  # before anything is created in its directory
    except LedgerGoneError:
        return  # without an error: its guard would start another
    own = replace(settings, simulate=gpu_model)
    places = EngineSettings(settings.state_dir, runtime_directory(settings.runtime_dir, settings.state_dir))
    # An agent that another process started for the same queue has the lock, and finds the job that this one was started for.
    held = take_lock(places, gpu_model, lock)
    if held is None:
        return
    again = (*agent_command(own), gpu_model or "")
    if lock < 0:
        become_guard(held, places.spool, again)
    # Of many threads at once: glibc would give each sixteen of them a heap of its own, and an interpreter that is handed over
    # each 5 ms (Python's default) wakes all threads that wait for it as often.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _MOST_ARENAS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    if guard is not None:
        use_guard(guard)
    engine = make_engine(own)
    run_agent(engine, EnginesOfJobs(own, engine).engine_of, attend_container, held, again)
    # Without the interpreter's end, which would wait for a thread that an engine or driver blocks.
    os._exit(0)


if __name__ == "__main__":
    main()
