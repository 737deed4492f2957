"""`python -m pgpu.app.oci.preparation CONFIG STATE_DIR`: finds out beforehand what `create` has no time for.

Run by `pgpu install-runtime`, and by `create` itself where something changed: settings, libraries, or the boot.
"""

import json
import os
import sys
from pathlib import Path

from pgpu.app.composition import SimulatedGpus, simulated_gpus
from pgpu.app.oci.cdi import gpu_edits
from pgpu.app.oci.machine import machine_settings
from pgpu.app.oci.machine_facts import FORMAT, NAME, stamp
from pgpu.app.runtime_directory import runtime_directory
from pgpu.enforcement.driver_library import find_driver
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.enforcement.slice_files import DRIVER_FILES
from pgpu.errors import NodeError, PgpuBug, PgpuError
from pgpu.host.atomic_file import write_atomically
from pgpu.libraries import CUDA_SHIM, HOLD, NVML_SHIM, PROBE, SIMULATED_CUDA, SIMULATED_NVML, library_path
from pgpu.model import Gpu


def main() -> None:
    """Write what is found, or say in one line why it cannot be."""
    try:
        prepare(sys.argv[1], sys.argv[2])
    except PgpuError as exc:
        sys.exit(f"{exc}" if exc.hint is None else f"{exc} ({exc.hint})")


def prepare(config: str, state_dir: str) -> None:
    """Find out what creating a container needs to know of this machine, and write it down.

    Raises:
        PgpuError: Something is missing.
    """
    settings = machine_settings(config, state_dir)
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    simulated = simulated_gpus(settings, runtime_path)
    libraries = _libraries(runtime_path, simulated)
    driver = {} if simulated else _driver_files()
    edits, descriptions = (None, []) if simulated else gpu_edits()
    needed = [*libraries.values(), *driver.values(), *([str(simulated.directory)] if simulated else [])]
    found = {
        "format": FORMAT,
        "runtime_directory": str(runtime_path),
        "libraries": libraries,
        "driver_files": driver,
        "simulated": str(simulated.directory) if simulated else None,
        "cdi": edits,
        "images_may_ask": settings.image_requests == "allow",
        "stamps": {path: stamp(path) for path in (config, *map(str, _sources()), *map(str, descriptions))},
        "needed": needed,
    }
    _keep(settings.state_dir, json.dumps(found, indent=1))


def _keep(state_dir: Path, text: str) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(state_dir / NAME, text.encode(), 0o600)
    except OSError as exc:
        raise NodeError(f"{state_dir / NAME} cannot be written: {exc.strerror}") from exc


def _libraries(runtime_path: Path, simulated: SimulatedGpus | None) -> dict[str, str]:
    enforcer = ShimEnforcer(runtime_path, _no_context, simulated.directory if simulated else None)
    copies = {name: str(copy) for name, copy in enforcer.libraries().items()}
    return {**copies, HOLD: str(enforcer.copy_of(library_path(HOLD)))}


def _no_context(_gpu: Gpu) -> int:
    raise PgpuBug("nobody asks for the size of a context here")


def _driver_files() -> dict[str, str]:
    driver = find_driver()
    return dict(zip(DRIVER_FILES, (str(driver.cuda), str(driver.nvml)), strict=True))


def _sources() -> list[Path]:
    """Our own modules too: another version finds out something else."""
    names = (CUDA_SHIM, NVML_SHIM, PROBE, HOLD, SIMULATED_CUDA, SIMULATED_NVML)
    return [*(library_path(name) for name in names), *Path(__file__).parent.glob("*.py")]


if __name__ == "__main__":
    os.umask(0o077)
    main()
