"""A runtime of its own for each test module, given to an engine that runs, as `pgpu install-runtime` does it."""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.forked_commands import PGPU, run_command
from tests.waiting import DEADLINE_SECONDS, until

Ended = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class OciPlace:
    """A ledger, its simulated GPU, and the runtime by which containers get slices of it."""

    path: Path
    runtime: str
    images: str
    model: str = "RTX 3090"

    @property
    def environment(self) -> dict[str, str]:
        """What `pgpu` is run with to see this ledger."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PGPU_")}
        return {
            **kept,
            "PATH": f"{PGPU.parent}:{kept['PATH']}",
            "PGPU_STATE_DIR": str(self.path / "state"),
            "PGPU_RUNTIME_DIR": str(self.path / "run"),
            "PGPU_SIMULATE": self.model,
            "XDG_CONFIG_HOME": str(self.path / "config"),
        }

    def run(self, *words: str, image: str = "latest", command: Sequence[str] = (), check: bool = True) -> Ended:
        """`docker run` with the runtime; `words` are its options."""
        words = ("run", "--network", "none", "--runtime", self.runtime, *words, f"{self.images}:{image}", *command)
        return docker(*words, check=check)

    def detach(self, name: str, memory: str, *command: str, words: Sequence[str] = ()) -> str:
        """Start a container in the background and return its full name."""
        named = f"{self.runtime}-{name}"
        self.run("--detach", "--name", named, "-e", f"PGPU_MEMORY={memory}", *words, command=command)
        return named

    def pgpu(self, *words: str) -> Ended:
        """Run one verb to its end."""
        return run_command(words, self.environment)

    def jobs(self) -> list[dict[str, Any]]:
        """Return what `pgpu ps --all` knows."""
        done = self.pgpu("ps", "--all", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
        return found

    def job(self, name: str) -> dict[str, Any]:
        """Return the newest job of a container, once it is listed: `docker run --detach` may return before."""

        def newest() -> dict[str, Any] | None:
            return next((job for job in reversed(self.jobs()) if job["name"] == name), None)

        found = until(newest)
        assert found is not None
        return found

    def is_empty(self) -> bool:
        """Whether no memory is granted and no slice's files are left."""
        held = [job for job in self.jobs() if job["state"] in {"waiting", "starting", "running"}]
        return not held and not list(self.path.glob("run/*/slices/*"))


def docker(*words: str, check: bool = True) -> Ended:
    """Run plain `docker`."""
    done = subprocess.run(
        ["docker", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0 or not check, f"docker {' '.join(words)}: {done.stderr}"
    return done


def inspected(name: str, what: str) -> str:
    """Return one field of a container."""
    return docker("inspect", name, "--format", f"{{{{{what}}}}}").stdout.strip()


@contextlib.contextmanager
def opened_oci_place(images: str, model: str = "RTX 3090") -> Iterator[OciPlace]:
    """Give the engine a runtime with a ledger of its own, and take both away again."""
    path = Path(tempfile.mkdtemp(prefix="pgpu-oci-", dir="/dev/shm"))
    (path / "run").mkdir(mode=0o700)
    try:
        with given_runtime(path, images, model) as place:
            yield place
    finally:
        _end_leftovers(path)
        clear(path)


@contextlib.contextmanager
def given_runtime(path: Path, images: str, model: str = "RTX 3090") -> Iterator[OciPlace]:
    """Give the engine a runtime whose containers get slices of a ledger that may be there already.

    Args:
        path: Has the ledger below `state` and its runtime files below `run`.
        images: Repository of the test images.
        model: Of the simulated GPU.
    """
    engine = _engine_directory()
    settings = path / "config.toml"
    settings.write_text(f'simulate = "{model}"\nruntime_dir = "{path / "run"}"\n')
    place = OciPlace(path, f"pgpu-{secrets.token_hex(4)}", images, model)
    words: list[str | Path] = ["--state-dir", path / "state", "install-runtime", "--config", engine / "daemon.json"]
    words += ["--name", place.runtime, "--settings", settings, "--engine", os.environ["DOCKER_HOST"]]
    try:
        with _reconfigured(engine, place.runtime, is_there=True):
            subprocess.run([PGPU, *words], check=True, capture_output=True)
        yield place
    finally:
        left = docker("ps", "--all", "--quiet", "--filter", f"name={place.runtime}-").stdout.split()
        if left:
            docker("rm", "--force", *left)
        with _reconfigured(engine, place.runtime, is_there=False):
            subprocess.run([PGPU, *words, "--uninstall"], check=True, capture_output=True)


def _engine_directory() -> Path:
    """Where `tools/docker-engine` keeps an engine that can be given a runtime while it runs."""
    directory = Path(os.environ.get("DOCKER_HOST", "").removeprefix("unix://")).parent
    if os.geteuid() != 0 or not all((directory / name).exists() for name in ("daemon.json", "dockerd.pid")):
        pytest.skip("the engine cannot be given a runtime: start one with tools/docker-engine, as root")
    return directory


@contextlib.contextmanager
def _reconfigured(engine: Path, runtime: str, *, is_there: bool) -> Iterator[None]:
    """Change the engine's file alone among all tests, and have it read."""
    with (engine / "daemon.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        os.kill(int((engine / "dockerd.pid").read_text()), signal.SIGHUP)
        if is_there:  # Docker forgets the last runtime of its file only when it starts again.
            until(lambda: runtime in docker("info", "--format", "{{json .Runtimes}}").stdout)


def _end_leftovers(path: Path) -> None:
    """End the processes of this place, known by its path on their command line, and its mounts."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"{path}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (point := line.split(" ")[1]).startswith(f"{path}/"):
            subprocess.run(["umount", "--lazy", point], check=False)
