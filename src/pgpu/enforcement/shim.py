"""The shim enforcer: a C library between the job and the driver, which fails allocations past the slice.

It works on every driver and needs no privilege. The limit is a file that only the host can write. The usage file is
written by the job, so its figures are bounds-checked and capped.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pgpu.enforcement import Enforcer, SliceUse, limit_file, meter, trace
from pgpu.enforcement.board import BoardGpu, read_board
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.driver_library import DriverLibraries, find_driver
from pgpu.enforcement.growth_channel import GrowthChannel
from pgpu.enforcement.slice_files import DRIVER_FILES, IN_JOB, LibraryStore, SliceFiles
from pgpu.errors import EnforcementError, NodeError, PgpuBug, RequestError
from pgpu.libraries import CUDA_SHIM, ENTER, NVML_SHIM, PROBE, SIMULATED_CUDA, SIMULATED_NVML, library_path
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.scheduling.slice_growth import grows
from pgpu.structs import replace
from pgpu.units import GIB, format_memory

_NANOSECONDS = 1_000_000_000
_DELIVERED = (CUDA_SHIM, NVML_SHIM, PROBE, ENTER)

LARGEST_CONTEXT_BYTES = GIB
"""Upper bound of a context's size: larger slices are not compared with it in `check_slice`, since measuring a context takes
seconds. Source: hundreds of MiB on H100 (P1, P2)."""


class ShimEnforcer:
    """Enforces a slice by a library that is loaded into the job's processes."""

    def __init__(
        self,
        runtime_directory: Path,
        context_bytes: Callable[[Gpu], int],
        simulated_state_directory: Path | None = None,
        find_real_driver: Callable[[], DriverLibraries] = find_driver,
    ) -> None:
        """Touch nothing yet.

        Args:
            runtime_directory: On a tmpfs without noexec; `slices/` and `libraries/` are created in it.
            context_bytes: Returns the bytes of one CUDA context on a GPU.
            simulated_state_directory: Of the simulated GPUs; None on real ones.
            find_real_driver: Locates the driver behind the shim; not called for simulated GPUs.
        """
        self._slices = runtime_directory / "slices"
        self._store = LibraryStore(runtime_directory / "libraries")
        self._context_bytes = context_bytes
        self._simulated = simulated_state_directory
        self._find_real_driver = find_real_driver
        self._libraries: Mapping[str, Path] | None = None

    @property
    def name(self) -> str:
        return "shim"

    @property
    def does_not_cover(self) -> str:
        return "code that brings its own copy of the driver or speaks to the kernel module itself"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        return self

    def files(self, job_id: str) -> SliceFiles:
        """Return the paths of one slice, existing or not."""
        return _slice_files(self._slices, job_id)

    def files_of(self, delivery: Delivery) -> SliceFiles:
        """Return the paths of the slice of a delivery."""
        return SliceFiles(delivery.slice_directory.parent)

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Reject a slice smaller than one CUDA context, which is measured if it is not cached.

        Raises:
            RequestError: It is smaller.
        """
        if memory_bytes < LARGEST_CONTEXT_BYTES:
            with contextlib.suppress(NodeError):  # the GPU may be full now and free later; `prepare` measures again
                self._context_that_fits(gpu, memory_bytes)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: A file is missing, or an earlier slice of this job is still held.
        """
        lease = job.lease
        if lease is None or [part.gpu_uuid for part in lease.slices] != [gpu.uuid for gpu in gpus]:
            raise PgpuBug(f"job {job.id} has no lease on these GPUs")
        contexts = [
            self._context_that_fits(gpu, part.device_bytes) for gpu, part in zip(gpus, lease.slices, strict=True)
        ]
        driver = None if self._simulated else self._find_real_driver()
        files = self._cleared(lease)
        try:
            if not files.is_laid_out:
                self._make(files, job, [part.gpu_uuid for part in lease.slices])
                self._adapt_to_delivery(files, is_advisory=lease.is_advisory)
            # The limit file is written last: the shim fails CUDA calls until it exists.
            limit_file.write_limit(files.limit, self._limit(job, lease, contexts, driver))
        except BaseException:  # includes KeyboardInterrupt: a partial slice must not be used as a complete one
            files.remove()
            raise
        return self._delivery(files, lease, driver)

    def _make(self, files: SliceFiles, job: Job, gpu_uuids: Sequence[str]) -> None:
        # All slices of this process get the libraries of its own version, whatever is installed meanwhile.
        if self._libraries is None or not all(map(os.path.exists, self._libraries.values())):
            self._libraries = self.libraries()
        files.make(self._libraries, job.owner_uid, gpu_uuids, is_traced=job.spec.is_traced)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Set every slice of a lease to `memory_bytes` while the job runs.

        Raises:
            EnforcementError: The limit cannot be written.
        """
        files = self.files(lease.job_id)
        # The old limit is stored first: after a shrink, use may stay above the new limit and must still be counted.
        files.remember_limit_bytes(max(gpu.limit_bytes for gpu in limit_file.read_limit(files.limit).gpus))
        for part in lease.slices:
            limit_file.set_limit_bytes(files.limit, part.gpu_uuid, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Set the compute word of each GPU of a lease while the job runs; the hold bits stay.

        Raises:
            EnforcementError: The limit file cannot be written.
        """
        limit = self.files(lease.job_id).limit
        for part, word in zip(lease.slices, words, strict=True):
            limit_file.set_compute_word(limit, part.gpu_uuid, word)

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Set or clear one hold on a job's launches and copies on one GPU of its lease, while the job runs.

        Raises:
            EnforcementError: The limit file cannot be written.
        """
        limit_file.set_held(self.files(lease.job_id).limit, gpu_uuid, hold, is_held=is_held)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        limit = self.files(lease.job_id).limit
        return [gpu.compute for gpu in limit_file.read_limit(limit).gpus] if limit.exists() else ()

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """Return the GPU time that the job reports.

        Raises:
            EnforcementError: Its file is corrupt.
        """
        files = self.files(lease.job_id)
        return read_board(files.time, meter.in_flight_until_ns(files.usage)) if files.time.exists() else ()

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Charge a slice for uncharged memory of the driver while the job runs; `overhead_bytes` ≥ 0.

        Raises:
            EnforcementError: The limit file cannot be written.
        """
        limit_file.set_overhead_bytes(self.files(lease.job_id).limit, gpu_uuid, overhead_bytes)

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        """Read the use of each slice.

        Figures from the usage file are capped at the slice's size: a larger figure would hide the memory of other processes on
        the GPU. A corrupt file counts as a full slice.
        """
        try:
            return _use(lease, self.files(lease.job_id))
        except EnforcementError as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return ()  # another process makes or releases the slice
            raise

    def growth(self, lease: Lease) -> GrowthChannel | None:
        files = self.files(lease.job_id)
        grows = files.limit.exists() and limit_file.read_limit(files.limit).flags & limit_file.GROWS
        return GrowthChannel(files.limit, files.usage) if grows else None

    def trace(self, lease: Lease) -> bytes | None:
        """Return the log of a traced job in the format of `trace.read`; None if the job is not traced."""
        files = self.files(lease.job_id)
        is_traced = files.limit.exists() and limit_file.read_limit(files.limit).flags & limit_file.TRACES
        return trace.save(files.usage) if is_traced else None

    def is_held(self, lease: Lease) -> bool:
        usage = self.files(lease.job_id).usage
        return usage.exists() and meter.is_held(usage)

    def release(self, lease: Lease) -> None:
        self.files(lease.job_id).remove()

    def _context_that_fits(self, gpu: Gpu, slice_bytes: int) -> int:
        context_bytes = self._context_bytes(gpu)
        if slice_bytes >= context_bytes:
            return context_bytes
        raise RequestError(
            f"{format_memory(slice_bytes)} cannot hold one CUDA context on {gpu.name}",
            hint=f"ask for more than {format_memory(context_bytes)}, which the context alone takes",
        )

    def _cleared(self, lease: Lease) -> SliceFiles:
        """Remove the files of an earlier failed start of this job."""
        if self.is_held(lease):
            raise EnforcementError(
                f"the slice of job {lease.job_id} is still held by a process", hint="stop the job and start a new one"
            )
        files = self.files(lease.job_id)
        # A waiting container has these inodes bind-mounted and would not see new files of the same names.
        if files.is_laid_out:
            files.forget_limit()
        else:
            files.remove()
        return files

    def libraries(self) -> Mapping[str, Path]:
        """Return the library copies for a slice's links, by path in the slice.

        Raises:
            NodeError: A library is missing from this installation.
            EnforcementError: A library cannot be copied.
        """
        sources = {name: library_path(name) for name in _DELIVERED}
        if self._simulated is not None:
            for name, simulated in zip(DRIVER_FILES, (SIMULATED_CUDA, SIMULATED_NVML), strict=True):
                sources[f"driver/{name}"] = library_path(simulated)
        return {name: self._store.copy_of(source) for name, source in sources.items()}

    def copy_of(self, library: Path) -> Path:
        """Return the stored copy of an additional library for slices.

        Raises:
            EnforcementError: It cannot be copied.
        """
        return self._store.copy_of(library)

    def _adapt_to_delivery(self, files: SliceFiles, *, is_advisory: bool) -> None:
        """Create the mount points; without mounts (advisory), a link leads to the simulated driver's state."""
        if self._simulated is None:
            files.make_placeholders()
        elif is_advisory:
            files.link_simulated_state(self._simulated)
        else:
            files.make_simulated_mount_point()

    def _limit(
        self, job: Job, lease: Lease, contexts: Sequence[int], driver: DriverLibraries | None
    ) -> limit_file.LimitFile:
        files = self.files(lease.job_id)
        cuda, nvml = self._real_paths(files, driver, is_advisory=lease.is_advisory)
        return limit_file.LimitFile(
            job_id=job.id,
            gpus=tuple(
                limit_file.LimitGpu(
                    uuid=part.gpu_uuid,
                    limit_bytes=part.memory_bytes,
                    context_bytes=context,
                    resident_bytes=part.resident_bytes or 0,
                )
                for part, context in zip(lease.slices, contexts, strict=True)
            ),
            real_cuda_path=str(cuda),
            real_nvml_path=str(nvml),
            usage_path=str(files.usage if lease.is_advisory else IN_JOB / "usage"),
            wait_for_memory_ns=int(job.spec.wait_for_memory_seconds * _NANOSECONDS),
            requires_read_only=not lease.is_advisory,
            flags=(limit_file.TRACES if job.spec.is_traced else 0)
            | (limit_file.OVERSUBSCRIBES if job.request.oversubscribes else 0)
            | (limit_file.GROWS if grows(job.request, lease.sharing) else 0),
            carve_out_percent=job.spec.carve_out_percent,
        )

    def _real_paths(self, files: SliceFiles, driver: DriverLibraries | None, *, is_advisory: bool) -> tuple[Path, Path]:
        """Paths of the driver behind the shims, as the job sees them; a preload uses the host's own paths."""
        if is_advisory and driver is not None:
            return driver.cuda, driver.nvml
        directory = (files.view if is_advisory else IN_JOB) / "driver"
        return directory / DRIVER_FILES[0], directory / DRIVER_FILES[1]

    def _delivery(self, files: SliceFiles, lease: Lease, driver: DriverLibraries | None) -> Delivery:
        uuids = tuple(part.gpu_uuid for part in lease.slices)
        environment = [("CUDA_VISIBLE_DEVICES", ",".join(uuids))]
        if self._simulated is not None and lease.is_advisory:
            environment.append(("PGPU_SIMGPU_DIR", str(self._simulated)))
        return Delivery(
            slice_directory=files.view,
            usage_path=files.usage,
            time_path=files.time.readlink(),
            board_directory=files.board,
            gpu_uuids=uuids,
            simulated_state_directory=self._simulated,
            driver_files=() if driver is None else tuple(zip(DRIVER_FILES, (driver.cuda, driver.nvml), strict=True)),
            environment=tuple(environment),
        )


def shims_id(find: Callable[[str], Path] = library_path) -> str:
    """Return an ID of the content of the files in every slice, which changes with their version.

    Args:
        find: Returns the path of a file of this name.

    Raises:
        NodeError: A file is missing from this installation.
    """
    from hashlib import sha256  # noqa: PLC0415 - faster for whole libraries than `pgpu.digests`

    return sha256(b"".join(find(name).read_bytes() for name in _DELIVERED)).hexdigest()[:16]


@lru_cache(maxsize=1024)
def _slice_files(slices: Path, job_id: str) -> SliceFiles:
    # Cached with those paths in it that are used each second for each job.
    return SliceFiles(slices / job_id)


def _use(lease: Lease, files: SliceFiles) -> Sequence[SliceUse]:
    try:
        limit = limit_file.read_limit(files.limit)
        uses = meter.read_use(limit, files.usage)
    except EnforcementError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            raise
        # Corrupt, or of another version: the slice counts as full. So a job cannot hide its use, and one file stops no round.
        return [SliceUse(part.gpu_uuid, part.memory_bytes, part.memory_bytes, 0) for part in lease.slices]
    largest = {gpu.uuid: gpu.limit_bytes + gpu.overhead_bytes for gpu in limit.gpus}
    capped = []
    for use in uses:
        largest_bytes = largest[use.gpu_uuid]
        if max(use.used_bytes, use.peak_bytes) > largest_bytes:
            # After a shrink, memory that was allocated under an earlier limit is real use and must not be cut off.
            largest_bytes = max(largest_bytes, files.largest_limit_bytes())
            used_bytes, peak_bytes = min(use.used_bytes, largest_bytes), min(use.peak_bytes, largest_bytes)
            use = replace(use, used_bytes=used_bytes, peak_bytes=peak_bytes)  # noqa: PLW2901 - the same use, capped
        capped.append(use)
    return capped


class MigEnforcer(ShimEnforcer):
    """Enforces a slice by its MIG instance, and by the shim for sizes below the instance's."""

    @property
    def name(self) -> str:
        return "mig"

    @property
    def does_not_cover(self) -> str:
        return "the rest of the job's own instance, which code that gets past the shim can use and no other job has"

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: A GPU is not a MIG instance, or an error of the shim enforcer.
        """
        for gpu in gpus:
            if not gpu.is_instance:
                raise EnforcementError(f"{gpu.name} ({gpu.uuid}) is no MIG instance")
        return super().prepare(job, gpus)
