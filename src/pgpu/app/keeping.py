"""What a keeper and its zygote are made of. The zygote is forked before anything is opened."""

import contextlib
import importlib
import importlib.util
import os
from dataclasses import replace
from functools import partial

from pgpu.app.composition import keeper_command, make_engine, open_ledger, supervise
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings, load_settings
from pgpu.engine.keeper.calling import TAKE_LOCK, take_lock
from pgpu.engine.keeper.life import keep as sit_with
from pgpu.engine.keeper.zygote import fork_zygote
from pgpu.engine.process.paths import job_paths
from pgpu.engine.process.spawn import speak_into
from pgpu.engine.settings import EngineSettings
from pgpu.engine.submission.inheritance import account_of
from pgpu.runtimes.process import why_no_private_view


def keep(settings: Settings, gpu_model: str | None, lock: int) -> None:
    """Be the keeper of a queue until nothing waits in it.

    Args:
        settings: As whoever started it had them.
        gpu_model: Which queue; None for real GPUs.
        lock: As of `take_lock`.

    Raises:
        PgpuError: The machine or its settings do not allow an engine.
    """
    open_ledger(settings).refuse_if_gone()  # before anything is made where it was
    own = replace(settings, simulate=gpu_model)
    again = (*keeper_command(own), gpu_model or "")
    places = EngineSettings(settings.state_dir, runtime_directory(settings.runtime_dir, settings.state_dir))
    held = take_lock(places, gpu_model, lock)
    if held is None:
        return
    become = partial(_become_supervisor, settings)
    zygote = fork_zygote(_load_for_supervisors, become, (*again, str(TAKE_LOCK)), [held], _load_for_containers)
    sit_with(partial(make_engine, own), zygote, held, again)


def _load_for_supervisors() -> None:
    """Import what every supervisor of a process needs, and try once what each would try; nothing stays open."""
    for name in (
        "pgpu.engine.supervisor",
        "pgpu.enforcement.shim",
        "pgpu.enforcement.ladder",
        "pgpu.runtimes.process",
        "pgpu.app.throwaway_jobs",
    ):
        importlib.import_module(name)
    why_no_private_view()


def _load_for_containers() -> None:
    """Import what supervisors of containers need as well, a tenth of a second's work for each of them otherwise."""
    if importlib.util.find_spec("docker") is not None:
        with contextlib.suppress(ImportError):  # whoever starts a container tells what is wrong with it
            importlib.import_module("pgpu.runtimes.docker.staging")
            importlib.import_module("pgpu.runtimes.docker.runtime")


def _become_supervisor(settings: Settings, job_id: str) -> None:
    """Be the supervisor of a job in a fork of the zygote, with the environment of whoever asked for it."""
    ledger = open_ledger(settings)
    ledger.refuse_if_gone()
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    speak_into(job_paths(EngineSettings(settings.state_dir, runtime_path), job_id))
    environment = ledger.environment(job_id)
    own_runtime = None if settings.runtime_dir is None else str(settings.runtime_dir)
    if environment and account_of(ledger.inherited(job_id), environment) is None:
        os.environ.clear()
        os.environ.update(environment)
    supervise(load_settings({"state_dir": str(settings.state_dir), "runtime_dir": own_runtime}), job_id)
