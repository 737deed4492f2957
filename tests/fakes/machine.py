"""A machine without GPUs, drivers or containers. Its state is in files, so that many processes can share it.

GPUs are numbers and slices are directories; an engine's holds on a job's GPU time are in `held-UUID`; jobs are real processes of the
real runtime. No limit binds here: the contract tests of real enforcers cover that. A job finds its slice through `FAKE_SLICE`
and may write `used` there, or keep `held` locked, like a process that keeps the driver's descriptors open.
"""

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pgpu.client.embedded_client import EmbeddedClient
from pgpu.enforcement import Enforcer, SliceUse
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.limit_file import explaining
from pgpu.engine.engine import Engine
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.settings import EngineSettings
from pgpu.errors import EnforcementError, RequestError
from pgpu.gpu import MetricsWatch
from pgpu.host.atomic_file import write_atomically
from pgpu.ledger import Ledger
from pgpu.libraries import CUDA_SHIM, NVML_SHIM, library_path
from pgpu.model import Account, Delivery, Gpu, GpuMemory, GpuProcess, GpuSensors, Holder, Job, Lease, ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.runtimes.running_process import RunningProcess
from pgpu.scheduling.gpu_turns import TurnRules
from pgpu.structs import replace

LOCKS = "locks"
"""Directory of a machine whose GPUs are taken for real ones: there, two ledgers exclude each other."""


KILL_ANNOUNCED = "kill-announced"
"""File of a machine whose jobs are killed after they were announced, before their commands are executed."""


class FileGpus:
    """GPUs with a file each for the memory that processes without a slice hold."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def gpus(self) -> Sequence[Gpu]:
        is_simulated = not (self._root / LOCKS).exists()
        return [
            Gpu(f"GPU-{index}", "Fake", index, amount, "1.0", is_simulated=is_simulated)
            for index, amount in enumerate(json.loads((self._root / "gpus.json").read_text()))
        ]

    def memory(self, gpu_uuid: str) -> GpuMemory:
        return GpuMemory(gpu_uuid, self._outsiders(gpu_uuid) + sum(amount for _, amount in self._slices()))

    def processes(self, gpu_uuid: str) -> Sequence[GpuProcess]:
        path = self._root / f"processes-{gpu_uuid}.json"
        return [GpuProcess(gpu_uuid, *pair) for pair in json.loads(path.read_text())] if path.exists() else []

    def busy_pids(self, gpu_uuid: str, since_seconds: float) -> frozenset[int] | None:
        path = self._root / f"busy-{gpu_uuid}.json"
        return frozenset(json.loads(path.read_text())) if path.exists() else None

    def utilisation_percent(self, gpu_uuid: str) -> int | None:
        return None

    def sensors(self, gpu_uuid: str) -> GpuSensors:
        return GpuSensors()

    def watch_metrics(self, gpu_uuid: str) -> MetricsWatch | None:
        return None

    def set_outsiders(self, gpu_uuid: str, amount: int) -> None:
        """Let processes without a slice hold this much."""
        (self._root / f"outsiders-{gpu_uuid}").write_text(str(amount))

    def _outsiders(self, gpu_uuid: str) -> int:
        path = self._root / f"outsiders-{gpu_uuid}"
        return int(path.read_text()) if path.exists() else 0

    def _slices(self) -> list[tuple[str, int]]:
        return [(path.parent.name, int(path.read_text() or 0)) for path in (self._root / "slices").glob("*/used")]


class FileEnforcer:
    """Makes a directory for each slice, and reports what the job writes there.

    A slice that another process removes meanwhile is an `EnforcementError`, as with the real one.
    """

    name = "fake"
    does_not_cover = "anything"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:
        return self

    def __init__(self, root: Path) -> None:
        self._slices = root / "slices"

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        path = self._slices.parent / f"context-{gpu.uuid}"
        if path.exists() and memory_bytes < int(path.read_text()):
            raise RequestError(f"{memory_bytes} bytes cannot hold one CUDA context")

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        if (self._slices.parent / "refuses").exists():
            raise EnforcementError("the fake refuses", hint="remove the file")
        directory = self._slices / job.id
        directory.mkdir(parents=True, exist_ok=True)
        for name in (CUDA_SHIM, NVML_SHIM):  # which the real runtime preloads; they do nothing without a CUDA program
            (directory / name).unlink(missing_ok=True)
            (directory / name).symlink_to(library_path(name))
        (directory / "held").touch()
        (directory / "limit").write_text(str(job.request.memory_bytes))
        environment = (("FAKE_SLICE", str(directory)),)
        return Delivery(directory, directory / "usage", tuple(gpu.uuid for gpu in gpus), environment=environment)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        (self._slices / lease.job_id / "limit").write_text(str(memory_bytes))

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        for part, word in zip(lease.slices, words, strict=True):
            (self._slices / lease.job_id / f"compute-{part.gpu_uuid}").write_text(str(word.packed))

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        directory = self._slices / lease.job_id
        with explaining(directory), (directory / f"hold-{gpu_uuid}").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            word = self._word(directory, gpu_uuid).with_hold(hold, is_held=is_held)
            write_atomically(directory / f"held-{gpu_uuid}", str(word.holds.value).encode(), 0o600)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        directory = self._slices / lease.job_id
        with explaining(directory):
            return [self._word(directory, part.gpu_uuid) for part in lease.slices]

    @staticmethod
    def _word(directory: Path, gpu_uuid: str) -> ComputeWord:
        told, held = directory / f"compute-{gpu_uuid}", directory / f"held-{gpu_uuid}"
        word = ComputeWord.unpack(int(told.read_text())) if told.exists() else ComputeWord()
        return replace(word, holds=Hold(int(held.read_text())) if held.exists() else Hold.NONE)

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """A job's file `board`: when it last needed its first GPU, and since when it is busy, in nanoseconds; its launches."""
        path = self._slices / lease.job_id / "board"
        if (self._slices.parent / "has-bug").exists():
            raise ZeroDivisionError("a bug in a policy")
        if not path.exists():
            return ()
        with explaining(path):
            wanted_ns, busy_since_ns, *more = json.loads(path.read_text())
        launches = more[0] if more else 0
        return [BoardGpu(ComputeWord(), wanted_ns, busy_since_ns, wanted_ns, 0, 0, 0, launches, 0, busy_since_ns)]

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        (self._slices / lease.job_id / f"overhead-{gpu_uuid}").write_text(str(overhead_bytes))

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        path = self._slices / lease.job_id / "used"
        if not path.exists():
            return []
        uuid = lease.slices[0].gpu_uuid
        overhead = path.with_name(f"overhead-{uuid}")
        with explaining(path.parent):
            used = int(path.read_text() or 0)
            if used and overhead.exists():
                used += int(overhead.read_text())
        resident = None if lease.slices[0].resident_bytes is None else 0
        return [SliceUse(uuid, used, used, 0, resident_bytes=resident)]

    def growth(self, lease: Lease) -> None:
        return None

    def trace(self, lease: Lease) -> bytes | None:
        return None

    def is_held(self, lease: Lease) -> bool:
        path = self._slices / lease.job_id / "held"
        if not path.exists():
            return False
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def release(self, lease: Lease) -> None:
        shutil.rmtree(self._slices / lease.job_id, ignore_errors=True)


class DyingRuntime(ProcessRuntime):
    """Real processes; their agent is killed at the points that files of the machine name, once each."""

    def __init__(self, root: Path) -> None:
        super().__init__(can_make_views=lambda: False)
        self._root = root

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> RunningProcess:
        def announce_and_die(holder: Holder) -> None:
            self._die_at("before-announce", job)
            announce(holder)
            self._die_at("after-announce", job)
            if isinstance(holder, ProcessHolder) and (self._root / KILL_ANNOUNCED).exists():
                os.kill(holder.pid, signal.SIGKILL)

        return super().start(job, delivery, stdio, announce_and_die, account)

    def _die_at(self, point: str, job: Job) -> None:
        order = self._root / f"die-{point}"
        if order.exists():
            order.rename(self._root / f"died-{point}-{job.id}")
            os.kill(os.getpid(), signal.SIGKILL)


def make_engine(root: Path, **settings: object) -> Engine:
    """Join the parts of the machine that lies at `root`."""
    stored: dict[str, object] = json.loads((root / "settings.json").read_text())
    if isinstance(rules := stored.get("turns"), Mapping):
        stored["turns"] = TurnRules(**rules)
    engine = Engine(
        EngineSettings(root / "state", root / "run", gpu_model="fake", **{**stored, **settings}),  # type: ignore[arg-type]
        Ledger(root / "state" / "ledger.db"),
        FileGpus(root),
        FileEnforcer(root),
        {"process": DyingRuntime(root)},
        (sys.executable, str(Path(__file__).with_name("agent.py")), str(root)),
    )
    engine.gpu_locks = GpuLocks(engine.ledger.path, [root / LOCKS])
    return engine


def make_machine(root: Path, gpus_bytes: Sequence[int], **settings: object) -> Engine:
    """Make a machine with these GPUs and without headroom, and return an engine of it."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "gpus.json").write_text(json.dumps(list(gpus_bytes)))
    (root / "settings.json").write_text(json.dumps({"headroom_least_bytes": 0, "headroom_fraction": 0.0, **settings}))
    (root / "slices").mkdir()
    return make_engine(root)


def make_client(engine: Engine) -> EmbeddedClient:
    """Return a client of this machine."""
    return EmbeddedClient(engine)
