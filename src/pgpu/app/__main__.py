"""`python -m pgpu.app … supervise JOB` and `… keep MODEL LOCK`: the programs of supervisors and keepers.

Not for users: errors go to the job's record or to a log in the state directory.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
from dataclasses import replace
from functools import partial

from pgpu.app.composition import keeper_command, make_engine, open_ledger, supervise
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings, load_settings


def main() -> None:
    """Run as a supervisor or as the keeper of a queue."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.app", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--runtime-dir")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("supervise").add_argument("job_id")
    keeper = verbs.add_parser("keep")
    keeper.add_argument("gpu_model", help="empty for real GPUs")
    keeper.add_argument("lock", type=int, help="descriptor that holds the keeper's lock; -1 for none")
    arguments = parser.parse_args()
    settings = load_settings({"state_dir": arguments.state_dir, "runtime_dir": arguments.runtime_dir})
    if arguments.verb == "supervise":
        supervise(settings, arguments.job_id)
    else:
        keep(settings, arguments.gpu_model or None, arguments.lock)


def keep(settings: Settings, gpu_model: str | None, lock: int) -> None:
    """Keep a queue in this process until no job waits in it.

    Args:
        settings: Settings of the process that started this one.
        gpu_model: Which queue; None for real GPUs.
        lock: See `take_lock`.

    Raises:
        PgpuError: This machine or its settings do not allow an engine.
    """
    from pgpu.engine.keeper.calling import TAKE_LOCK, take_lock
    from pgpu.engine.keeper.life import keep as keep_queue
    from pgpu.engine.keeper.zygote import fork_zygote
    from pgpu.engine.settings import EngineSettings

    open_ledger(settings).refuse_if_gone()  # before anything is created in its directory
    own = replace(settings, simulate=gpu_model)
    again = (*keeper_command(own), gpu_model or "")
    places = EngineSettings(settings.state_dir, runtime_directory(settings.runtime_dir, settings.state_dir))
    # A keeper that another process started for the same queue has the lock, and admits the job that this one was started for.
    held = take_lock(places, gpu_model, lock)
    if held is None:
        return
    become = partial(_become_supervisor, settings)
    # The zygote is forked before the engine is made: an open ledger or driver must not be carried over a fork.
    zygote = fork_zygote(_load_for_supervisors, become, (*again, str(TAKE_LOCK)), [held], _load_for_containers)
    keep_queue(partial(make_engine, own), zygote, held, again)


def _load_for_supervisors() -> None:
    """Import what every supervisor of a process needs, and try once for a private view; nothing stays open."""
    from pgpu.runtimes.process_runtime import why_no_private_view

    for name in (
        "pgpu.engine.leases.mps_sharing",
        "pgpu.engine.settings",
        "pgpu.engine.submitter",
        "pgpu.engine.supervisor",
        "pgpu.enforcement.context_sizes",
        "pgpu.enforcement.driver",
        "pgpu.enforcement.mps",
        "pgpu.enforcement.self_test",
        "pgpu.enforcement.shim",
        "pgpu.enforcement.enforcer_selector",
        "pgpu.runtimes.process_runtime",
        "pgpu.app.throwaway_jobs",
    ):
        importlib.import_module(name)
    # The result is cached in this process, so that forked supervisors do not start the trial again.
    why_no_private_view()


def _load_for_containers() -> None:
    """Import what supervisors of containers need as well; it takes each of them 0.1 s otherwise."""
    if importlib.util.find_spec("docker") is not None:
        with contextlib.suppress(ImportError):  # The supervisor of a container reports a broken SDK.
            importlib.import_module("pgpu.runtimes.docker.staging")
            importlib.import_module("pgpu.runtimes.docker.docker_runtime")


def _become_supervisor(settings: Settings, job_id: str) -> None:
    """Supervise a job in a fork of the zygote, with the environment of the job's submitter."""
    from pgpu.engine.settings import EngineSettings, job_paths, redirect_stderr
    from pgpu.engine.submitter import account_of

    ledger = open_ledger(settings)
    ledger.refuse_if_gone()
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    redirect_stderr(job_paths(EngineSettings(settings.state_dir, runtime_path), job_id))
    environment = ledger.environment(job_id)
    # The zygote still has the environment of the process that started the keeper. A job under another user's account does
    # not get it here: its runtime applies the account, and this process stays the server's.
    own_runtime = None if settings.runtime_dir is None else str(settings.runtime_dir)
    if environment and account_of(ledger.inherited(job_id), environment) is None:
        os.environ.clear()
        os.environ.update(environment)
    supervise(load_settings({"state_dir": str(settings.state_dir), "runtime_dir": own_runtime}), job_id)


if __name__ == "__main__":
    main()
