"""A Docker engine that one test alone uses, so that it may be stopped and killed."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import DEADLINE_SECONDS

_TOOL = Path(__file__).parent.parent.parent.parent / "tools" / "docker-engine"


@dataclass
class OwnEngine:
    """One engine."""

    directory: Path
    host: str = ""
    """What DOCKER_HOST is for its clients."""

    def tell(self, verb: str) -> str:
        """Start, stop or purge it; what it printed."""
        done = subprocess.run(
            [_TOOL, verb],
            env={**os.environ, "PGPU_ENGINE_DIR": str(self.directory)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def crash(self) -> None:
        """Kill the engine; its containers live on until it comes back."""
        os.kill(int((self.directory / "dockerd.pid").read_text()), signal.SIGKILL)


@contextlib.contextmanager
def started_engine(image: str, **settings: object) -> Iterator[OwnEngine]:
    """Start an engine that has one image.

    Args:
        image: Of the engine that DOCKER_HOST names now.
        settings: For its daemon.json.
    """
    data = subprocess.run(["docker", "save", image], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="pgpu-engine-", dir="/var/tmp") as directory:
        own = OwnEngine(Path(directory))
        (own.directory / "daemon.json").write_text(json.dumps(settings))
        own.host = own.tell("start").removeprefix("DOCKER_HOST=")
        try:
            loaded = subprocess.run(
                ["docker", "--host", own.host, "load"], input=data, capture_output=True, check=False
            )
            assert loaded.returncode == 0, loaded.stderr
            yield own
        finally:
            own.tell("start")  # what live restore keeps running would keep its files, too
            left = subprocess.run(
                ["docker", "--host", own.host, "ps", "--quiet"], capture_output=True, text=True, check=True
            )
            if ids := left.stdout.split():
                subprocess.run(["docker", "--host", own.host, "rm", "--force", *ids], capture_output=True, check=True)
            own.tell("purge")
            Path(directory).mkdir(exist_ok=True)
