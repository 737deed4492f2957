"""The GpuSource for real and simulated GPUs: NVML through pynvml.

NVML's library is global to a process, so only this module loads it. For simulated GPUs it first loads the simulated
libnvidia-ml.so.1 by its path; pynvml then finds it by its SONAME. A process can use only one of the two libraries.

A GPU with MIG on is reported as its instances. Instances that share memory (several compute instances of one GPU instance) are
left out, since nothing isolates them. MIG is never switched, and no instance is created. Source: NVML API reference, Multi
Instance GPU Management.

A GPU without memory of its own (GB10, Jetson) allocates the machine's. NVML does not report it, so Linux does: its total equals
that of `cuDeviceTotalMem`, and it counts CUDA's allocations, like those of all programs, as used.
"""

import ctypes
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from pgpu.errors import NodeError, PgpuBug
from pgpu.gpu import nvml_watch
from pgpu.gpu.nvml_errors import CANNOT_TELL, nvml_errors_translated
from pgpu.gpu.nvml_watch import XidWatch
from pgpu.host.meminfo import MEMINFO, read_meminfo
from pgpu.libraries import SIMULATED_NVML, library_path
from pgpu.model import Gpu, GpuMemory, GpuProcess, GpuSensors
from pgpu.structs import replace

_NO_INSTANCE = (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument)


def is_divided(handle: Any) -> bool:
    """Whether MIG is on, so that no program can use this GPU as a whole."""
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (*CANNOT_TELL, pynvml.NVMLError_InvalidArgument):  # the last: it is an instance itself
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def instances(handle: Any) -> Sequence[tuple[int, Any]]:
    """Return index and handle of every instance of a GPU with memory of its own, in NVML's order."""
    found = []
    # The count is the most instances that this GPU can have; an index without an instance is not an error.
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append((index, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
        except _NO_INSTANCE:
            continue
    gpu_instances = [pynvml.nvmlDeviceGetGpuInstanceId(instance) for _, instance in found]
    sharing = Counter(gpu_instances)
    return [one for one, gpu_instance in zip(found, gpu_instances, strict=True) if sharing[gpu_instance] == 1]


_CGROUP_ROOT = Path("/sys/fs/cgroup")

_DIRECTORY_VARIABLE = "PGPU_SIMGPU_DIR"

_Query = Callable[[Any], Sequence[Any]]

# Three lists of processes, that of graphics processes last; drivers before r510 have the older call only.
_PROCESS_QUERIES: tuple[tuple[_Query, ...], ...] = (
    (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
)


class NvmlSource:
    """GPUs from NVML."""

    def __init__(self, simulated_state_directory: Path | None = None) -> None:
        """Take the kind of GPUs; NVML is opened at first use.

        Args:
            simulated_state_directory: State directory of `start_simulated`; None for real GPUs.
        """
        self._directory = simulated_state_directory

    def gpus(self) -> Sequence[Gpu]:
        """Return every GPU, in NVML index order; a GPU with MIG on is replaced by its instances.

        Empty if no NVIDIA driver is installed.

        Raises:
            NodeError: The driver does not answer.
        """
        try:
            with _library.opened(self._directory), nvml_errors_translated("list the GPUs"):
                driver_version = pynvml.nvmlSystemGetDriverVersion()
                count = pynvml.nvmlDeviceGetCount()
                return [gpu for index in range(count) for gpu in self._gpus_at(index, driver_version)]
        except _NoDriverError:
            return ()

    def cuda_version(self) -> int | None:
        """Return the newest CUDA version that the driver supports, as 1000 · major + 10 · minor; None without a driver.

        Raises:
            NodeError: The driver does not answer.
        """
        try:
            with _library.opened(self._directory), nvml_errors_translated("read the CUDA version"):
                return int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        except _NoDriverError:
            return None

    def memory(self, gpu_uuid: str) -> GpuMemory:
        """Return the memory held by all processes on one GPU, without what the driver reserves.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "memory") as handle:
            memory = _own_memory(handle)
        if memory is not None:
            return GpuMemory(uuid=gpu_uuid, used_bytes=memory.used)
        total_bytes, available_bytes = self._host_memory()
        # The simulated driver takes none of the machine's memory, so its processes count apart.
        held_bytes = sum(process.used_bytes or 0 for process in self.processes(gpu_uuid))
        return GpuMemory(uuid=gpu_uuid, used_bytes=max(held_bytes, total_bytes - available_bytes))

    def processes(self, gpu_uuid: str) -> Sequence[GpuProcess]:
        """Return the processes that hold memory of one GPU, by host PID, each once.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "processes") as handle:
            lists: list[Sequence[Any]] = []
            for queries in _PROCESS_QUERIES:
                answers = (_if_supported(query, handle) for query in queries)
                lists.append(next((answer for answer in answers if answer is not None), ()))
        # A process that computes and draws is in two of the lists. NVML leaves the bytes of a process out where it does not know them.
        used: dict[int, int | None] = {}
        for entry in itertools.chain.from_iterable(lists):
            known_bytes = [amount for amount in (used.get(entry.pid), entry.usedGpuMemory) if amount is not None]
            used[entry.pid] = max(known_bytes) if known_bytes else None
        compute_pids = {entry.pid for entries in lists[:-1] for entry in entries}
        return [GpuProcess(gpu_uuid, pid, amount, pid not in compute_pids) for pid, amount in sorted(used.items())]

    def utilisation_percent(self, gpu_uuid: str) -> int | None:
        """Return the percentage of the last sample period in which a kernel ran, 0-100; None if the driver does not report it.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "utilisation") as handle:
            rates = _if_supported(pynvml.nvmlDeviceGetUtilizationRates, handle)
            return None if rates is None else int(rates.gpu)

    def sensors(self, gpu_uuid: str) -> GpuSensors:
        """Return temperature, power and clocks of one GPU; nothing of a MIG instance, which shares those of its GPU.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        if gpu_uuid.startswith("MIG-"):
            return GpuSensors()
        with self._open_gpu(gpu_uuid, "sensors") as handle:
            drawn, limit = (
                _if_supported(query, handle)
                for query in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetEnforcedPowerLimit)
            )
            return GpuSensors(
                _if_supported(lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU), handle),
                None if drawn is None else drawn / 1000,
                None if limit is None else limit / 1000,
                _if_supported(lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM), handle),
                _if_supported(lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM), handle),
            )

    def busy_pids(self, gpu_uuid: str, since_seconds: float) -> frozenset[int] | None:
        """Return host PIDs of processes that ran kernels on a GPU recently; None if the driver does not report it.

        Args:
            gpu_uuid: The GPU.
            since_seconds: Older samples are ignored; since the epoch.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "processes' utilisation") as handle:
            try:
                samples = pynvml.nvmlDeviceGetProcessUtilization(handle, int(since_seconds * 1e6))
            except (pynvml.NVMLError_NoData, pynvml.NVMLError_NotFound):  # supported, but there is no newer sample
                return frozenset()
            except CANNOT_TELL:
                return None
            return frozenset(sample.pid for sample in samples if sample.smUtil > 0)

    def watch_metrics(self, gpu_uuid: str) -> nvml_watch.GpmWatch | None:
        """Start to measure a GPU's use of its pipes and memory bandwidth; None if the GPU does not support it.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "performance metrics") as handle:
            if gpu_uuid.startswith("MIG-") or not _if_supported(nvml_watch.is_supported, handle):
                return None
        return nvml_watch.GpmWatch(lambda: self._open_gpu(gpu_uuid, "performance metrics"))

    def watch_xids(self) -> XidWatch:
        """Return a watch for fatal errors of the GPUs."""
        return XidWatch(lambda: _library.opened(self._directory), self._directory)

    def is_divided(self, gpu_uuid: str) -> bool:
        """Whether MIG is on, so that no program can use this GPU as a whole.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        with self._open_gpu(gpu_uuid, "MIG mode") as handle:
            return is_divided(handle)

    def can_limit_cgroups(self, gpu_uuid: str) -> bool:
        """Whether this driver limits the memory of control groups: r615 and newer, as root, without MIG.

        Raises:
            NodeError: The GPU or its driver is gone.
        """
        if not hasattr(pynvml, "nvmlDeviceSetMemoryLimits_v1") or os.geteuid() != 0 or not _CGROUP_ROOT.is_dir():
            return False
        # The root group always exists, and reading its limits changes nothing.
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(_CGROUP_ROOT))
        with self._open_gpu(gpu_uuid, "memory limits") as handle:
            try:
                pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
            except (*CANNOT_TELL, pynvml.NVMLError_InvalidArgument):
                return False
            return True

    def limit_cgroup(self, gpu_uuid: str, cgroup: Path, limit_bytes: int) -> None:
        """Limit the memory of a control group's processes on one GPU, enforced by the driver.

        Soft and hard limit are equal, so that allocations fail instead of causing memory pressure. The limit ends with the group.

        Raises:
            NodeError: The driver does not support it, or a privilege is missing.

        Source: NVML API reference, nvmlDeviceSetMemoryLimits_v1.
        """
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=os.fsencode(cgroup), softLimit=limit_bytes, hardLimit=limit_bytes
        )
        with self._open_gpu(gpu_uuid, "memory limits") as handle:
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)

    def _gpus_at(self, index: int, driver_version: str) -> Sequence[Gpu]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if not is_divided(handle):
            return [self._gpu(handle, index, driver_version)]
        parent_uuid = pynvml.nvmlDeviceGetUUID(handle)
        return [
            replace(self._gpu(instance, index, driver_version), parent_uuid=parent_uuid, mig_index=mig_index)
            for mig_index, instance in instances(handle)
        ]

    def _gpu(self, handle: Any, index: int, driver_version: str) -> Gpu:
        memory = _own_memory(handle)
        if memory is None:
            total_bytes, _ = self._host_memory()
        else:  # NVML's total includes the driver's reserve, which no program can allocate.
            total_bytes = memory.total - int(getattr(memory, "reserved", 0))
        return Gpu(
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            index=index,
            memory_bytes=total_bytes,
            driver_version=driver_version,
            is_simulated=self._directory is not None,
            compute_capability=_if_supported(_compute_capability, handle),
            link_bytes_per_second=None if memory is None else _if_supported(_link_bytes_per_second, handle),
            shares_host_memory=memory is None,
        )

    def _host_memory(self) -> tuple[int, int]:
        """Return total and available bytes of the machine, or of the simulated one.

        Raises:
            NodeError: Linux does not report them.
        """
        path = MEMINFO if self._directory is None else self._directory / MEMINFO.name
        try:
            amounts = read_meminfo(path)
            return amounts["MemTotal"], amounts["MemAvailable"]
        except (OSError, ValueError, KeyError) as error:
            raise NodeError(
                f"{path} does not report the machine's memory, which its GPU shares: {error}", hint="mount /proc"
            ) from error

    @contextmanager
    def _open_gpu(self, gpu_uuid: str, what: str) -> Iterator[Any]:
        try:
            with _library.opened(self._directory), nvml_errors_translated(f"read the {what} of {gpu_uuid}"):
                yield pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        except _NoDriverError as error:
            raise NodeError(f"{gpu_uuid} is gone: {error}", hint=error.hint) from error


class _NoDriverError(NodeError):
    """There is no libnvidia-ml.so.1 on this machine."""


class _Library:
    """State of NVML in this process: the loaded library, and the directory for which it was initialised."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_simulated: bool | None = None
        self._is_initialised = False
        self._directory: Path | None = None

    @contextmanager
    def opened(self, directory: Path | None) -> Iterator[None]:
        """Hold NVML initialised for real GPUs (None) or for those of a state directory."""
        # Held for the whole block: a thread that opens another directory shuts NVML down, which makes all handles invalid.
        with self._lock:
            if not self._is_initialised or self._directory != directory:
                self._close()
                self._open(directory)
            yield

    def _open(self, directory: Path | None) -> None:
        self._load(wants_simulated=directory is not None)
        with nvml_errors_translated("initialise NVML"), _environment(directory):
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError_LibraryNotFound as error:
                raise _NoDriverError("no NVIDIA driver is installed", hint="install it, or use --simulate") from error
        self._is_initialised, self._directory = True, directory
        self._is_simulated = directory is not None

    def _load(self, *, wants_simulated: bool) -> None:
        if self._is_simulated not in {None, wants_simulated}:
            raise PgpuBug("this process uses both real and simulated GPUs, but can load only one NVML")
        if wants_simulated:
            ctypes.CDLL(str(library_path(SIMULATED_NVML)))
            self._is_simulated = True

    def _close(self) -> None:
        if self._is_initialised:
            self._is_initialised = False
            with nvml_errors_translated("close NVML"):
                pynvml.nvmlShutdown()


_library = _Library()


@contextmanager
def _environment(directory: Path | None) -> Iterator[None]:
    """Set the simulated driver's directory while it is initialised; child processes must not inherit the variable."""
    before = os.environ.get(_DIRECTORY_VARIABLE)
    if directory is not None:
        os.environ[_DIRECTORY_VARIABLE] = str(directory)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_DIRECTORY_VARIABLE, None)
        else:
            os.environ[_DIRECTORY_VARIABLE] = before


def _own_memory(handle: Any) -> Any | None:
    """Return memory with the driver's reserve apart, as drivers since r510 do; None if the GPU has none of its own."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except CANNOT_TELL:
        pass
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        return None


def _compute_capability(handle: Any) -> tuple[int, int]:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return major, minor


# Of PCI Express, by generation. Source: PCI-SIG, base specifications.
_LANE_BITS_PER_SECOND = (2_500_000_000, 5_000_000_000, 8_000_000_000, 16_000_000_000, 32_000_000_000, 64_000_000_000)


def _link_bytes_per_second(handle: Any) -> int | None:
    """Return three quarters of the lanes' raw rate: headers and flow control take the rest.

    By the maximum generation that device and slot support, since an idle link runs at a lower one.
    """
    generation = int(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    lanes = int(pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    if not 1 <= generation <= len(_LANE_BITS_PER_SECOND) or lanes < 1:
        return None
    return _LANE_BITS_PER_SECOND[generation - 1] * lanes // 8 * 3 // 4


def _if_supported(query: Callable[[Any], Any], handle: Any) -> Any | None:
    try:
        return query(handle)
    except CANNOT_TELL:
        return None
