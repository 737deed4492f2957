"""A temporary second container with the same files and user, in which the limit is tested before the first is released.

It has the first one's configuration with another slice, another command and no network. It runs only the self-test's
command, while the first container's program is held back.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from pgpu.errors import RuntimeUnavailableError
from pgpu.host.process_identity import has_ended, identify_unreaped
from pgpu.model import Delivery, Job, ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.container_record import Container

MPS_IN_JOB = "/.pgpu/mps"
"""Mount point of the MPS pipes in a container, an empty directory of its slice."""

_END_SECONDS = 10.0


class ProbeContainer:
    """The `RunningJob` of a second container."""

    def __init__(self, process: subprocess.Popen[bytes], bundle: Path, runc: str, name: str) -> None:
        """Attach to the lower runtime's process, which lives as long as its container.

        Args:
            process: The lower runtime's.
            bundle: Removed by `close`.
            runc: The lower runtime.
            name: Unique name of the container and of its control group.
        """
        holder = identify_unreaped(process.pid)
        if holder is None:
            raise RuntimeUnavailableError("the lower runtime vanished")
        self._process = process
        self._bundle = bundle
        self._runc = runc
        self._name = name
        self._holder = holder
        self._pidfd = os.pidfd_open(process.pid)

    @property
    def holder(self) -> ProcessHolder:
        """The lower runtime's process."""
        return self._holder

    def fileno(self) -> int:
        return self._pidfd

    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def owns(self, pid: int) -> bool:
        """True if a process is the lower runtime itself or runs in the probe container."""
        with contextlib.suppress(OSError):
            return pid == self._process.pid or f"/{self._name}" in Path(f"/proc/{pid}/cgroup").read_text(
                encoding="utf-8"
            )
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the lower runtime, which forwards it."""
        if self.is_alive():
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the container through the lower runtime, which also cleans up; SIGKILL the latter if it hangs.

        A forwarded signal is not sufficient: the kernel discards signals for the first process of a PID namespace that it has no
        handler for.
        """
        if self.is_alive():
            words = [self._runc, "--root", str(self._bundle / "state"), "kill", self._name, "KILL"]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if not has_ended(self._pidfd, _END_SECONDS):
            self.signal(signal.SIGKILL)
        self._process.wait()

    def resize_terminal(self, size: os.terminal_size) -> None:
        """No effect: it has no terminal."""

    def close(self) -> None:
        os.close(self._pidfd)
        shutil.rmtree(self._bundle, ignore_errors=True)


def start_probe(container: Container, job: Job, delivery: Delivery, stdio: Stdio) -> ProbeContainer:
    """Start the self-test's command in a probe container, in another slice.

    Raises:
        RuntimeUnavailableError: The lower runtime cannot be started.
    """
    bundle = delivery.slice_directory.parent / "twin"
    bundle.mkdir(mode=0o700)
    try:
        configuration = probe_configuration(container, job, delivery)
        (bundle / "config.json").write_text(json.dumps(configuration), encoding="utf-8", errors="surrogateescape")
        name = f"pgpu-{job.id}"
        words = [container.runc[0], "--root", str(bundle / "state"), "run", "--bundle", str(bundle), name]
        process = subprocess.Popen(words, stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr)
    except OSError as exc:
        shutil.rmtree(bundle, ignore_errors=True)
        raise RuntimeUnavailableError(f"{container.runc[0]} cannot be started: {exc.strerror}") from exc
    return ProbeContainer(process, bundle, container.runc[0], name)


def probe_configuration(container: Container, job: Job, delivery: Delivery) -> dict[str, Any]:
    """Return the configuration of a probe container: the same files and user, another slice and command, no network, no hooks."""
    text = (container.bundle / "config.json").read_text(encoding="utf-8", errors="surrogateescape")
    configuration: dict[str, Any] = json.loads(text)
    root = configuration["root"]
    root.update(path=os.path.join(container.bundle, root["path"]), readonly=True)  # noqa: PTH118 - either may be absolute
    configuration["process"].update(args=list(job.spec.command), terminal=False)
    configuration["process"]["env"] += [f"{name}={value}" for name, value in delivery.environment]
    for mount in configuration["mounts"]:
        with contextlib.suppress(ValueError, KeyError):
            # Mounts from the first container's slice come from the probe's slice instead; all others stay.
            inside = Path(mount["source"]).relative_to(container.home)
            mount["source"] = str(delivery.slice_directory.parent / inside)
    if delivery.mps_pipe_directory is not None:
        pipes = {"type": "bind", "source": str(delivery.mps_pipe_directory), "destination": MPS_IN_JOB}
        configuration["mounts"].append({**pipes, "options": ["bind", "rw", "rprivate"]})
    # New namespaces of the same types: without `path` none of the first container is joined. A new network namespace is
    # empty. The user namespace stays as it is, since the owners of the files depend on its mappings.
    linux = configuration.setdefault("linux", {})
    kept = [each["type"] for each in linux.get("namespaces", ()) if each["type"] not in {"network", "user"}]
    users = [each for each in linux.get("namespaces", ()) if each["type"] == "user"]
    linux["namespaces"] = [*({"type": kind} for kind in kept), {"type": "network"}, *users]
    linux["cgroupsPath"] = f"/pgpu-{job.id}"
    # Hooks act on the engine's container, such as its network.
    configuration.pop("hooks", None)
    return configuration
