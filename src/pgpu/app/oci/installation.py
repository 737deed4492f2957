"""Installs the runtime `pgpu`: its entry in the configuration of a Docker engine, and the facts that `create` needs.

Other keys of the configuration stay, in their order; the file is written whole or not at all. The engine is neither
reloaded nor restarted: that is for its administrator.

`python -m pgpu.app.oci.installation CONFIG STATE_DIR` only gathers the facts about this machine: `create` runs it after
a change of settings or libraries and after a boot.
"""

import difflib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pgpu.app.composition import agent_command, open_ledger, simulated_gpus
from pgpu.app.oci.cdi import gpu_edits
from pgpu.app.oci.runc_call import FORMAT, NAME, RUNC, stamp
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings, load_machine_settings
from pgpu.enforcement.driver_library import find_driver
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.enforcement.slice_files import DRIVER_FILES
from pgpu.engine.agent.agents import AgentIdentity
from pgpu.engine.settings import EngineSettings, agent_paths
from pgpu.errors import NodeError, PgpuBug, PgpuError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.process_identity import myself
from pgpu.libraries import (
    CUDA_SHIM,
    HOLD,
    MONITOR,
    NVML_SHIM,
    OCI_RUNTIME,
    PROBE,
    SIMULATED_CUDA,
    SIMULATED_NVML,
    library_path,
)
from pgpu.model import Gpu
from pgpu.structs import Struct

_MODE = 0o644
_INDENT = 4


class Installation(Struct, frozen=True):
    """The runtime's entry in the configuration."""

    name: str
    """Its name for `docker run --runtime=NAME`."""

    settings: Path
    """Settings file of the machine."""

    state_dir: Path
    """Directory of the machine's ledger."""

    engine: str
    """Socket of the engine, for queries about images."""

    def entry(self) -> dict[str, Any]:
        """Return the element of `runtimes`.

        Raises:
            NodeError: The runtime's program is missing from this installation.
        """
        words = {
            "python": sys.executable,
            "runc": shutil.which(RUNC) or RUNC,
            "config": str(self.settings),
            "state-dir": str(self.state_dir),
            "engine": self.engine,
        }
        return {
            "path": str(library_path(OCI_RUNTIME)),
            "runtimeArgs": [f"--pgpu-{name}={value}" for name, value in words.items()],
        }


class Change(Struct, frozen=True):
    """A configuration file before and after."""

    path: Path
    before: str
    after: str

    @property
    def is_empty(self) -> bool:
        """Whether the file has the entry already."""
        return self.before == self.after

    def diff(self) -> str:
        """Return the change as `diff -u` would."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), str(self.path), str(self.path), lineterm=""
        )
        return "\n".join(lines)

    def write(self) -> None:
        """Write the file.

        Raises:
            NodeError: The file cannot be written; it is unchanged.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            mode = self.path.stat().st_mode & 0o777 if self.path.exists() else _MODE
            # Resolved: a rename onto a symbolic link would replace the link, not the file that it names.
            write_atomically(self.path.resolve(), self.after.encode(), mode)
        except OSError as exc:
            raise NodeError(
                f"{self.path} cannot be written: {exc.strerror}", hint="run it as the engine's administrator, with sudo"
            ) from exc


def plan_install(path: Path, installation: Installation) -> Change:
    """Return the change that adds the runtime.

    Raises:
        NodeError: The file is no JSON object, or this machine cannot be a host of such containers.
    """
    before, content = _read_configuration(path)
    runtimes = content.setdefault("runtimes", {})
    if not isinstance(runtimes, dict):
        raise NodeError(f"{path}: `runtimes` is not an object", hint="mend it first; nothing was changed")
    runtimes[installation.name] = installation.entry()
    return _make_change(path, before, content)


def plan_uninstall(path: Path, name: str) -> Change:
    """Return the change that removes the runtime.

    Raises:
        NodeError: The file is no JSON object.
    """
    before, content = _read_configuration(path)
    runtimes = content.get("runtimes")
    if not isinstance(runtimes, dict) or name not in runtimes:
        return Change(path, before, before)
    del runtimes[name]
    if not runtimes:
        del content["runtimes"]
    return _make_change(path, before, content)


def _read_configuration(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        content = json.loads(text) if text.strip() else {}
    except (OSError, ValueError) as exc:
        raise NodeError(f"{path} cannot be read: {exc}", hint="mend it first; nothing was changed") from exc
    if not isinstance(content, dict):
        raise NodeError(f"{path} is not a JSON object", hint="mend it first; nothing was changed")
    return text, content


def _make_change(path: Path, before: str, content: dict[str, Any]) -> Change:
    # An unchanged content keeps its formatting.
    is_same = bool(before.strip()) and json.loads(before) == content
    return Change(
        path, before, before if is_same else json.dumps(content, indent=_INDENT, ensure_ascii=False) + os.linesep
    )


def main() -> None:
    """Write the facts, or exit with one line."""
    try:
        prepare(sys.argv[1], sys.argv[2])
    except PgpuError as exc:
        sys.exit(f"{exc}" if exc.hint is None else f"{exc} ({exc.hint})")


def prepare(config: str, state_dir: str) -> None:
    """Gather the facts and write them to the state directory.

    Raises:
        PgpuError: Something is missing, such as a driver.
    """

    # Only the copies of the libraries are needed here, never the size of a slice.
    def no_context(_gpu: Gpu) -> int:
        raise PgpuBug("the size of a context is not measured here")

    settings = load_machine_settings(config, state_dir)
    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    simulated = simulated_gpus(settings, runtime_path)
    enforcer = ShimEnforcer(runtime_path, no_context, simulated.directory if simulated else None)
    libraries = {name: str(copy) for name, copy in enforcer.libraries().items()}
    libraries[HOLD] = str(enforcer.copy_of(library_path(HOLD)))
    driver: dict[str, str] = {}
    if simulated is None:
        libraries_of_driver = find_driver()
        driver = dict(zip(DRIVER_FILES, (str(libraries_of_driver.cuda), str(libraries_of_driver.nvml)), strict=True))
    edits, descriptions = (None, []) if simulated else gpu_edits()
    # A change of one of these files makes the facts stale. Our own modules are among them: a version may need others.
    libraries_here = (CUDA_SHIM, NVML_SHIM, PROBE, HOLD, MONITOR, SIMULATED_CUDA, SIMULATED_NVML)
    sources = [library_path(name) for name in libraries_here]
    sources += [*Path(__file__).parent.glob("*.py"), *descriptions]
    ledger = open_ledger(settings)
    with ledger.view():
        pass  # It exists now: an agent that finds no ledger ends.
    # The copies lie on the tmpfs: after a boot they are missing, and the facts are gathered again.
    needed = [*libraries.values(), *driver.values(), str(ledger.path)]
    needed += [str(simulated.directory)] if simulated else []
    found = {
        "format": FORMAT,
        "runtime_directory": str(runtime_path),
        "libraries": libraries,
        "driver_files": driver,
        "simulated": str(simulated.directory) if simulated else None,
        "cdi": edits,
        "images_may_ask": settings.image_requests == "allow",
        "agent": _describe_agent(settings, runtime_path, simulated.name if simulated else None),
        "stamps": {path: stamp(path) for path in (config, *map(str, sources))},
        "needed": needed,
    }
    path = settings.state_dir / NAME
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found, indent=1).encode(), 0o600)
    except OSError as exc:
        raise NodeError(f"{path} cannot be written: {exc.strerror}") from exc


def _describe_agent(settings: Settings, runtime_path: Path, gpu_model: str | None) -> dict[str, Any]:
    """Return what a process without pgpu needs to call the agent of the queue or to start one."""
    engine = EngineSettings(settings.state_dir, runtime_path)
    places = agent_paths(engine, gpu_model)
    code = AgentIdentity.of_this_code(myself())
    return {
        "gpu_model": gpu_model,
        "lock": str(places.lock),
        "wake": str(places.wake_socket),
        "door": str(places.door_socket),
        "guard": str(library_path(MONITOR)),
        "spool": str(engine.spool),
        "command": [*agent_command(settings), gpu_model or ""],
        "log": str(settings.state_dir / "agent.log"),
        "version": code.version,
        "package": code.package,
    }


if __name__ == "__main__":
    os.umask(0o077)
    main()
