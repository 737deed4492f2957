"""Composition root: builds an engine from settings, with real or simulated GPUs, enforcers, runtimes and the ledger.

The command line, the server and every agent use the same code. Imports that few processes need happen in the functions: an
agent that runs no container never loads the container engine's library.
"""

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import SYSTEM_FILE, Settings, load_machine_settings, load_settings, user_file
from pgpu.enforcement import Enforcer
from pgpu.engine.engine import Engine
from pgpu.engine.settings import EngineSettings
from pgpu.engine.submitter import account_of
from pgpu.errors import NodeError
from pgpu.ledger import Ledger
from pgpu.libraries import CUDA_SHIM, ENTER, LAUNCHER, NVML_SHIM, PROBE, SIMULATED_CUDA, SIMULATED_NVML, library_path
from pgpu.runtimes import Runtime
from pgpu.structs import Struct, replace

if TYPE_CHECKING:
    from pgpu.enforcement.checkpoints import Checkpoints
    from pgpu.enforcement.driver import DriverEnforcer
    from pgpu.enforcement.self_test import SelfTest
    from pgpu.enforcement.shim import MigEnforcer, ShimEnforcer
    from pgpu.engine.leases.mps_sharing import MpsSharing
    from pgpu.gpu.nvml import NvmlSource
    from pgpu.gpu.products import GpuModel
    from pgpu.runtimes.cgroups import LimitCgroup
    from pgpu.runtimes.docker.staging import Staging

LEDGER_NAME = "ledger.db"

ENGINE_VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "HOME", "XDG_RUNTIME_DIR")
"""Variables of a submitter that choose the container engine, beside those of the settings."""


class SimulatedGpus(Struct, frozen=True):
    """The simulated GPUs of an engine."""

    model: "GpuModel"
    count: int
    directory: Path
    """The simulated driver keeps their state here."""

    @property
    def name(self) -> str:
        """Their name in the ledger and on the command line: `rtx-3090`, or `rtx-3090x4`."""
        return self.model.slug if self.count == 1 else f"{self.model.slug}x{self.count}"


def make_engine(settings: Settings, environment: Mapping[str, str] = os.environ) -> Engine:
    """Build the engine that the settings describe.

    Args:
        settings: From `environment` and other places.
        environment: Names the container engine.

    Raises:
        PgpuError: This machine lacks something that the settings name, or this process is inside a job.
    """
    from pgpu.enforcement.context_sizes import ContextSizes
    from pgpu.enforcement.driver import DriverEnforcer
    from pgpu.enforcement.shim import MigEnforcer, ShimEnforcer
    from pgpu.enforcement.slice_files import IN_JOB
    from pgpu.runtimes.process_table import JOB_ID_VARIABLE

    # A job sees a GPU of the size of its slice: an engine there would decide on wrong figures for all jobs.
    if (IN_JOB / "limit").exists() or JOB_ID_VARIABLE in os.environ:
        raise NodeError("this is inside a job of pgpu, whose GPU is a slice", hint="run pgpu outside of its jobs")
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    simulated = simulated_gpus(settings, runtime_path)
    directory = simulated.directory if simulated else None
    source = gpu_source(simulated)
    ledger = open_ledger(settings)
    # The driver is looked up at the first measurement, so that a machine without one can still list jobs.
    context_bytes = ContextSizes(ledger.facts, source.processes, lambda: _find_cuda_library(simulated), directory)
    shim = ShimEnforcer(runtime_path, context_bytes, directory)
    driver = DriverEnforcer(shim, source.limit_cgroup)
    runtimes = _make_runtimes(settings, runtime_path, simulated, driver.limit_cgroup, environment)
    make_mps = _mps_maker(runtime_path, directory, ledger, runtimes)
    enforcers = (shim, driver, MigEnforcer(runtime_path, context_bytes, directory))
    may_limit_cgroups = simulated is None or simulated.model.limits_cgroups
    engine = Engine(
        replace(_engine_settings(settings, runtime_path, simulated), has_mps=make_mps is not None),
        ledger,
        source,
        _select_enforcer(enforcers, source, _make_self_test(ledger, runtimes), may_limit_cgroups=may_limit_cgroups),
        runtimes,
        agent_command(settings),
    )
    engine.make_mps = make_mps
    if settings.checkpoints == "on":
        engine.make_checkpoints = lambda: _make_checkpoints(simulated, source)
    return engine


def open_ledger(settings: Settings) -> Ledger:
    ledger = Ledger(settings.state_dir / LEDGER_NAME)
    # SQLite merges its log into the file when the last connection is closed. At the interpreter's end nothing else closes it.
    atexit.register(ledger.close)
    return ledger


def simulated_gpus(settings: Settings, runtime_path: Path) -> SimulatedGpus | None:
    """Start the simulated GPUs of the settings; None without any.

    Raises:
        RequestError: Unknown model.
        NodeError: Their directory cannot be made.
    """
    if settings.simulate is None:
        return None
    from pgpu.gpu.catalog import parse_model
    from pgpu.gpu.simulated import start_simulated

    model, count = parse_model(settings.simulate)
    # On the tmpfs: jobs map the simulated driver's state, and it vanishes at a reboot as a GPU's memory does.
    parent = runtime_path / "simulated"
    parent.mkdir(mode=0o700, exist_ok=True)
    found = SimulatedGpus(model, count, parent / f"{model.slug}x{count}")
    start_simulated(found.directory, model, count)
    return found


class _SourceOnDemand:
    """An `NvmlSource` that is made at the first call of a method: NVML's binding takes longer to import than many commands run."""

    def __init__(self, simulated_directory: Path | None) -> None:
        self._directory = simulated_directory

    @functools.cached_property
    def _source(self) -> "NvmlSource":
        from pgpu.gpu.nvml import NvmlSource

        return NvmlSource(self._directory)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(self._source, name)(*arguments)  # noqa: PLW0108 - not before the call


def gpu_source(simulated: SimulatedGpus | None) -> "NvmlSource":
    """Return the NVML client of the real or simulated GPUs."""
    return cast("NvmlSource", _SourceOnDemand(simulated.directory if simulated else None))


def agent_command(settings: Settings) -> tuple[str, ...]:
    """Return the command of an agent; its GPUs' model and the descriptors of its lock and of its guard are appended."""
    # -P: without it, a directory named `pgpu` in the caller's working directory would be imported instead.
    # Both directories may come from flags, which the new process would not have.
    words = [sys.executable, "-P", "-m", "pgpu.app", "--state-dir", str(settings.state_dir)]
    if settings.runtime_dir is not None:
        words += ["--runtime-dir", str(settings.runtime_dir)]
    return (*words, "agent")


_MOST_ENVIRONMENTS = 16


class EnginesOfJobs:
    """The engines of one agent: each job is supervised with the settings of the process that submitted it."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        """Use the agent's own engine where a job's settings are the same.

        Args:
            settings: Of the agent.
            engine: Made of them.
        """
        self._settings = settings
        self._ledger = engine.ledger
        self._slices = engine.settings.runtime_directory / "slices"
        self._lock = threading.Lock()
        self._engines = {self._key(settings, os.environ): engine}

    def engine_of(self, job_id: str) -> Engine:
        """Return the engine of a job; may be called by any thread.

        Raises:
            PgpuError: The job is unknown, or its settings cannot be read.
        """
        settings, environment = self._of_container(job_id) or self._of_submitter(job_id)
        key = self._key(settings, environment)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = make_engine(settings, environment)
            return self._engines[key]

    def _of_container(self, job_id: str) -> tuple[Settings, Mapping[str, str]] | None:
        """Return the settings of the machine for a container of `docker run --runtime=pgpu`; None for any other job."""
        from pgpu.app.oci.runc_call import clean_environment
        from pgpu.runtimes.container_record import RECORD, container_of

        home = f"{self._slices}/{job_id}"
        config = container_of(Path(home)).config if os.path.exists(f"{home}/{RECORD}") else ""  # noqa: PTH110 - for each job
        if not config:
            return None
        settings = load_machine_settings(config, str(self._settings.state_dir))
        own = self._settings
        return replace(settings, simulate=own.simulate, runtime_dir=own.runtime_dir), clean_environment()

    def _of_submitter(self, job_id: str) -> tuple[Settings, Mapping[str, str]]:
        words, inherited = self._ledger.inheritance(job_id)
        if not words or account_of(inherited, ()) is not None:
            # A server decides for its users: their environment is their jobs' alone.
            return self._settings, dict(os.environ)
        files = _state_of(SYSTEM_FILE), _state_of(_user_file_of(words))
        return _settings_of(words, self._settings, files)

    @staticmethod
    def _key(settings: Settings, environment: Mapping[str, str]) -> tuple[object, ...]:
        return (settings, *(environment.get(name) for name in ENGINE_VARIABLES))


@functools.lru_cache(maxsize=_MOST_ENVIRONMENTS)
def _user_file_of(words: tuple[tuple[str, str], ...]) -> Path:
    return user_file(dict(words))


@functools.lru_cache(maxsize=_MOST_ENVIRONMENTS)
def _settings_of(
    words: tuple[tuple[str, str], ...], own: Settings, _files: object
) -> tuple[Settings, Mapping[str, str]]:
    # Cached until one of the settings files changes: the jobs of an array have one environment.
    environment = dict(words)
    flags = {"state_dir": str(own.state_dir), "runtime_dir": None if own.runtime_dir is None else str(own.runtime_dir)}
    return replace(load_settings(flags, environment), simulate=own.simulate), environment


def _state_of(file: Path) -> tuple[int, ...] | None:
    """Return what changes with a file's content; None if it cannot be read."""
    try:
        found = os.stat(file)  # noqa: PTH116 - for each job
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def supervise(settings: Settings, job_id: str) -> None:
    """Supervise a job in this process, until it is over.

    Raises:
        PgpuError: The job is unknown, or this machine lacks what it needs.
    """
    from pgpu.engine.supervisor import supervise as supervise_job

    # A process that outlives its state directory must not create an empty ledger in its place.
    ledger = open_ledger(settings)
    ledger.refuse_to_make()
    job = ledger.job(job_id)
    supervise_job(make_engine(replace(settings, simulate=job.gpu_model)), job_id)


class Runtimes(Mapping[str, Runtime]):
    """Runtimes by name, each made on first use."""

    def __init__(self, makers: Mapping[str, Callable[[], Runtime]]) -> None:
        self._makers = makers
        # A missing SDK or library is then an error of the jobs that need it, and not of every command.
        self._made: dict[str, Runtime] = {}

    def __getitem__(self, name: str) -> Runtime:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _make_runtimes(
    settings: Settings,
    runtime_path: Path,
    simulated: SimulatedGpus | None,
    limit_cgroup: "LimitCgroup",
    environment: Mapping[str, str],
) -> Runtimes:
    def process() -> Runtime:
        from pgpu.runtimes.process_runtime import ProcessRuntime

        _check_libraries(simulated)
        return ProcessRuntime(limit_cgroup=limit_cgroup)

    def docker() -> Runtime:
        from pgpu.runtimes.docker.docker_runtime import DockerRuntime

        _check_libraries(simulated)
        return DockerRuntime(
            settings.state_dir / "images",
            limit_cgroup=limit_cgroup,
            staging=_make_staging(runtime_path),
            environment=environment,
        )

    def oci() -> Runtime:
        from pgpu.runtimes.oci_runtime import OciRuntime

        return OciRuntime(limit_cgroup=limit_cgroup)

    def claim() -> Runtime:
        from pgpu.runtimes.claim_runtime import ClaimRuntime

        return ClaimRuntime(process)

    return Runtimes({"process": process, "docker": docker, "oci": oci, "claim": claim})


def _engine_settings(settings: Settings, runtime_path: Path, simulated: SimulatedGpus | None) -> EngineSettings:
    return EngineSettings(
        state_directory=settings.state_dir,
        runtime_directory=runtime_path,
        gpu_model=simulated.name if simulated else None,
        agent_unit=settings.agent_unit,
        **changeable(settings),
    )


def changeable(settings: Settings) -> dict[str, Any]:
    """Return the fields of `EngineSettings` that may change while an engine runs."""
    return {
        "headroom_least_bytes": settings.headroom.least_bytes,
        "headroom_fraction": settings.headroom.fraction,
        "headroom_yields": settings.headroom.yields,
        "on_violation": settings.on_violation,
        "on_outsider": settings.on_outsider,
        "objective": settings.objective,
        "oversubscription": settings.oversubscription,
        "has_turns": settings.turns == "on",
        "divides_users": settings.user_turns == "on",
        "idle_timeout_seconds": settings.idle_timeout,
        "on_idle": settings.on_idle,
        "log_cap_bytes": settings.log_cap,
        "stop_grace_seconds": settings.stop_grace,
        "stable_seconds": settings.stable_time,
        "most_waiting": settings.waiting_jobs,
        "most_waiting_bytes": settings.waiting_size,
        "jobs_without_gpu": settings.jobs_without_gpu,
    }


def _mps_maker(
    runtime_path: Path, simulated_directory: Path | None, ledger: Ledger, runtimes: Mapping[str, Runtime]
) -> "Callable[[], MpsSharing] | None":
    """Return what makes the MPS daemons of the GPUs; None if the driver has no control program."""
    from pgpu.enforcement.mps import find_control

    program = find_control(is_simulated=simulated_directory is not None)
    if program is None:
        return None

    def make() -> "MpsSharing":
        from pgpu.app.throwaway_jobs import hold_throwaway
        from pgpu.enforcement.mps import MpsDaemons, MpsProof
        from pgpu.engine.leases.mps_sharing import MpsSharing

        proof = MpsProof(
            lambda job, delivery, account, inspect: hold_throwaway(
                runtimes[job.spec.runtime], job, delivery, account, inspect
            )
        )
        return MpsSharing(MpsDaemons(runtime_path, program, simulated_directory), ledger, proof)

    return make


def _make_checkpoints(simulated: SimulatedGpus | None, source: "NvmlSource") -> "Checkpoints":
    from pgpu.enforcement.checkpoints import Checkpoints

    return Checkpoints(
        lambda: _find_cuda_library(simulated),
        simulated.directory if simulated else None,
        share_host_memory=lambda: any(gpu.shares_host_memory for gpu in source.gpus()),
    )


def _make_self_test(ledger: Ledger, runtimes: Mapping[str, Runtime]) -> "SelfTest":
    from pgpu.app.throwaway_jobs import try_throwaway
    from pgpu.enforcement.self_test import SelfTest
    from pgpu.enforcement.shim import shims_id

    # Results are kept in the ledger. One is valid for one version of the shims and one image, since both determine which
    # driver library a program loads. The shims are those that this process started with.
    shims = functools.cache(shims_id)
    return SelfTest(
        ledger.facts,
        lambda job, delivery: try_throwaway(runtimes[job.spec.runtime], job, delivery),
        lambda job: f"{shims()}/{runtimes[job.spec.runtime].image_id(job.spec)}",
    )


def _select_enforcer(
    enforcers: "tuple[ShimEnforcer, DriverEnforcer, MigEnforcer]",
    source: "NvmlSource",
    self_test: "SelfTest",
    *,
    may_limit_cgroups: bool,
) -> Enforcer:
    from pgpu.enforcement.driver import UnaidedDriver
    from pgpu.enforcement.enforcer_selector import EnforcerCandidate, EnforcerSelector, RejectingEnforcer

    shim, driver, mig = enforcers
    # Strongest first. The last one stands for a GPU that was switched to MIG after its instances were listed.
    candidates = (
        EnforcerCandidate(mig, lambda gpu: gpu.is_instance),
        EnforcerCandidate(
            driver,
            lambda gpu: may_limit_cgroups and not gpu.is_instance and source.can_limit_cgroups(gpu.uuid),
            UnaidedDriver(shim, source.limit_cgroup),
        ),
        EnforcerCandidate(shim, lambda gpu: gpu.is_simulated or not source.is_divided(gpu.uuid)),
        EnforcerCandidate(
            RejectingEnforcer("it was divided into MIG instances just now", "ask again: jobs get its instances"),
            lambda _gpu: True,
        ),
    )
    return EnforcerSelector(candidates, source.gpus, self_test)


def _find_cuda_library(simulated: SimulatedGpus | None) -> Path:
    from pgpu.enforcement.driver_library import find_driver

    return library_path(SIMULATED_CUDA) if simulated else find_driver().cuda


def _make_staging(runtime_path: Path) -> "Staging":
    from pgpu.runtimes.docker.staging import Staging

    return Staging(runtime_path / "volumes")


def sweep_volumes(settings: Settings) -> None:
    """Remove volumes that killed processes of this state directory left mounted."""
    _make_staging(runtime_directory(settings.runtime_dir, settings.state_dir)).sweep()


def _check_libraries(simulated: SimulatedGpus | None) -> None:
    # A missing library is an error before the request is accepted, not when its job starts.
    for name in (
        CUDA_SHIM,
        NVML_SHIM,
        LAUNCHER,
        PROBE,
        ENTER,
        *((SIMULATED_CUDA, SIMULATED_NVML) if simulated else ()),
    ):
        library_path(name)
