"""Creation of simulated GPUs: writes `gpus.conf`, which the simulated driver reads, into a state directory.

For GPUs that share the machine's memory it also writes `meminfo`, the memory of the simulated machine as Linux reports it: idle,
since the simulated driver takes none of it.

The driver creates everything else in that directory. Simulated GPUs exist as long as their directory does; there is no process.
"""

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from pgpu.digests import named_uuid
from pgpu.errors import NodeError
from pgpu.gpu.mig_profiles import MEMORY_SLICES, MigProfile
from pgpu.gpu.products import GpuModel
from pgpu.host.meminfo import MEMINFO
from pgpu.units import KIB, escape_undecodable

CONFIGURATION_NAME = "gpus.conf"

# r615 is the first driver that limits memory by cgroup.
DRIVER_VERSION = "615.42.01"

# CUDA 13.4, which came with r615: 1000 · major + 10 · minor.
CUDA_VERSION = 13040

# Jobs of all users create the driver's state in it; the sticky bit prevents them from replacing each other's files.
_DIRECTORY_MODE = 0o1777

_FILE_MODE = 0o644
_UUID_NAMESPACE = uuid.UUID("6b1f2f0e-6f0c-5d4e-9d8c-3f1e2a7b9c10")
_IDENTITY_KEYS = ("uuid", "name", "memory_bytes")


def start_simulated(state_directory: Path, model: GpuModel, count: int) -> None:
    """Create `count` simulated GPUs of one model in a directory, on a tmpfs so that they end with the machine.

    Idempotent, and safe for concurrent callers. A description written by an older pgpu is kept, since running jobs use it.

    Args:
        state_directory: Created if missing; its parent must exist.
        model: From the catalog.
        count: 1-16.

    Raises:
        NodeError: The directory cannot be written, or contains other simulated GPUs.
    """
    text = _configuration(state_directory, model, count)
    target = state_directory / CONFIGURATION_NAME
    try:
        state_directory.mkdir(exist_ok=True)
        found = state_directory.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _DIRECTORY_MODE:
            state_directory.chmod(_DIRECTORY_MODE)  # the mode of mkdir is subject to the umask
        if not target.exists():
            if model.shares_host_memory:
                amount = f"{model.memory_bytes // KIB} kB"
                _publish_once(state_directory / MEMINFO.name, f"MemTotal: {amount}\nMemAvailable: {amount}\n")
            _publish_once(target, text)
        existing = target.read_text()
    except OSError as error:
        raise NodeError(
            f"simulated GPUs cannot be made in {state_directory}: {error.strerror}",
            hint="name a directory that can be written",
        ) from error
    if _identity(existing) != _identity(text):
        raise NodeError(
            f"{state_directory} simulates other GPUs already", hint="use another directory, or remove this one"
        )


def simulated_uuid(state_directory: Path, index: int) -> str:
    """Return the UUID of a simulated GPU in NVML's form; unique over all state directories."""
    return f"GPU-{named_uuid(_UUID_NAMESPACE, f'{_place(state_directory)}#{index}')}"


def _place(state_directory: Path) -> str:
    """Return the real path of a directory as UTF-8, from which UUIDs are derived."""
    return escape_undecodable(os.path.realpath(state_directory))


def simulated_instance_uuid(state_directory: Path, index: int, mig_index: int) -> str:
    """Return the UUID of a MIG instance of a simulated GPU in NVML's form."""
    return f"MIG-{named_uuid(_UUID_NAMESPACE, f'{_place(state_directory)}#{index}:{mig_index}')}"


def _publish_once(target: Path, text: str) -> None:
    """Create the target atomically with its whole content, unless it exists: write a temporary file, then link it."""
    import tempfile  # noqa: PLC0415 - once in the life of a directory

    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), _FILE_MODE)
        with suppress(FileExistsError):
            os.link(name, target)
    finally:
        Path(name).unlink()


def _configuration(state_directory: Path, model: GpuModel, count: int) -> str:
    """Return the text: whole GPUs first, then all instances, as simgpu/README.md requires."""
    wholes = [_facts(state_directory, model, index) for index in range(count)]
    sections = [_section("gpu", whole) for whole in wholes]
    for index, whole in enumerate(wholes):
        for mig_index, instance in enumerate(model.instances):
            facts = _instance_facts(model, instance)
            place: dict[str, str | int] = {
                "uuid": simulated_instance_uuid(state_directory, index, mig_index),
                "parent": index,
                "gpu_instance": mig_index + 1,
            }
            sections.append(_section("mig", whole | facts | place))
    return f"driver_version={DRIVER_VERSION}\ncuda_version={CUDA_VERSION}\n\n" + "\n".join(sections)


def _section(kind: str, facts: dict[str, str | int]) -> str:
    return f"[{kind}]\n" + "".join(f"{key}={value}\n" for key, value in facts.items())


def _facts(state_directory: Path, model: GpuModel, index: int) -> dict[str, str | int]:
    return {
        "uuid": simulated_uuid(state_directory, index),
        "name": model.name,
        "memory_bytes": model.memory_bytes,
        "reserved_bytes": model.reserved_bytes,
        "context_bytes": model.context_bytes,
        "sm_count": model.sm_count,
        "threads_per_sm": model.capability.threads_per_sm,
        "shared_bytes_per_sm": model.capability.shared_bytes_per_sm,
        "unified_l1_bytes_per_sm": model.capability.unified_l1_bytes_per_sm,
        "fp32_lanes_per_sm": model.capability.fp32_lanes_per_sm,
        "fp64_lanes_per_sm": model.capability.fp64_lanes_per_sm,
        "l1_latency_cycles": model.capability.l1_latency_cycles,
        "l2_latency_cycles": model.capability.l2_latency_cycles,
        "memory_latency_cycles": model.capability.memory_latency_cycles,
        "l2_bytes": model.l2_bytes,
        "l2_bytes_per_second": model.l2_bytes_per_second,
        "bandwidth_bytes_per_second": model.bandwidth_bytes_per_second,
        "memory_bus_bits": model.memory_bus_bits,
        "clock_khz": model.sm_clock_mhz * 1000,
        "memory_clock_khz": model.memory_clock_mhz * 1000,
        "compute_major": model.capability.major,
        "compute_minor": model.capability.minor,
        "architecture": model.capability.architecture,
        "power_milliwatts": model.power_limit_watts * 1000,
        "pcie_bytes_per_second": model.pcie_bytes_per_second,
        "fault_bytes_per_second": model.fault_bytes_per_second,
        "pcie_generation": model.pcie_generation,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "pci_device_id": f"0x{model.pci_device_id:04X}",
        "mig": int(bool(model.instances)),
        "integrated": int(model.shares_host_memory),
    }


def _instance_facts(model: GpuModel, instance: MigProfile) -> dict[str, str | int]:
    """Return what differs from the whole GPU: memory, cache and bandwidth are proportional to memory slices."""
    return {
        "name": f"{model.name} MIG {instance.name}",
        "memory_bytes": instance.memory_bytes,
        "reserved_bytes": 0,
        "sm_count": instance.sm_count,
        "l2_bytes": model.l2_bytes * instance.memory_slices // MEMORY_SLICES,
        "l2_bytes_per_second": model.l2_bytes_per_second * instance.memory_slices // MEMORY_SLICES,
        "bandwidth_bytes_per_second": model.bandwidth_bytes_per_second * instance.memory_slices // MEMORY_SLICES,
        "mig": 0,
    }


def _identity(configuration: str) -> list[str]:
    return [line for line in configuration.splitlines() if line.partition("=")[0] in _IDENTITY_KEYS]
