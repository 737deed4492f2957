"""`python -m pgpu.app.oci.preparation CONFIG STATE_DIR`: gathers the facts about this machine that `create` needs.

Run by `pgpu install-runtime`, and by `create` itself after a change of settings or libraries and after a boot.
"""

import json
import os
import sys
from pathlib import Path

from pgpu.app.composition import SimulatedGpus, simulated_gpus
from pgpu.app.oci.cdi import gpu_edits
from pgpu.app.oci.machine_facts import FORMAT, NAME, stamp
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import load_machine_settings
from pgpu.enforcement.driver_library import find_driver
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.enforcement.slice_files import DRIVER_FILES
from pgpu.errors import NodeError, PgpuBug, PgpuError
from pgpu.host.atomic_file import write_atomically
from pgpu.libraries import CUDA_SHIM, HOLD, NVML_SHIM, PROBE, SIMULATED_CUDA, SIMULATED_NVML, library_path
from pgpu.model import Gpu


def main() -> None:
    """Write the facts, or exit with one line."""
    try:
        prepare(sys.argv[1], sys.argv[2])
    except PgpuError as exc:
        sys.exit(f"{exc}" if exc.hint is None else f"{exc} ({exc.hint})")


def prepare(config: str, state_dir: str) -> None:
    """Gather the facts and write them to the state directory.

    Raises:
        PgpuError: Something is missing.
    """
    settings = load_machine_settings(config, state_dir)
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    simulated = simulated_gpus(settings, runtime_path)
    libraries = _libraries(runtime_path, simulated)
    driver: dict[str, str] = {}
    if simulated is None:
        libraries_of_driver = find_driver()
        driver = dict(zip(DRIVER_FILES, (str(libraries_of_driver.cuda), str(libraries_of_driver.nvml)), strict=True))
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
    path = settings.state_dir / NAME
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found, indent=1).encode(), 0o600)
    except OSError as exc:
        raise NodeError(f"{path} cannot be written: {exc.strerror}") from exc


def _libraries(runtime_path: Path, simulated: SimulatedGpus | None) -> dict[str, str]:
    enforcer = ShimEnforcer(runtime_path, _no_context, simulated.directory if simulated else None)
    copies = {name: str(copy) for name, copy in enforcer.libraries().items()}
    return {**copies, HOLD: str(enforcer.copy_of(library_path(HOLD)))}


def _no_context(_gpu: Gpu) -> int:
    raise PgpuBug("the size of a context is not measured here")


def _sources() -> list[Path]:
    """Return the files whose change makes the facts stale; our own modules are among them, since a version may need others."""
    names = (CUDA_SHIM, NVML_SHIM, PROBE, HOLD, SIMULATED_CUDA, SIMULATED_NVML)
    return [*(library_path(name) for name in names), *Path(__file__).parent.glob("*.py")]


if __name__ == "__main__":
    os.umask(0o077)
    main()
