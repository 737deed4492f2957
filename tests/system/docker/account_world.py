"""What the tests of other users' containers share: a user that nobody is, a runtime of root's, and a place that all can reach."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import RuntimeWorld, opened

from pgpu.model import Account, JobSpec, Mount
from pgpu.runtimes.docker.docker_runtime import DockerRuntime
from pgpu.runtimes.docker.staging import Staging

ALICE = Account(61001, 61001, (61050,))


@contextlib.contextmanager
def opened_account_world(image: str, directory: Path) -> Iterator[RuntimeWorld]:
    """Give a runtime of root's; nothing may be left mounted at its end."""
    if os.geteuid() != 0:
        pytest.skip("only root can start jobs under other accounts")
    runs = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    runtime = DockerRuntime(directory.parent / "images", staging=Staging(runs / "volumes"))
    with opened(RuntimeWorld(runtime, directory, kind="docker", image=image)) as made:
        yield made
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(runs) in line]
    shutil.rmtree(runs)


def output(
    world: RuntimeWorld, script: str, *volumes: Mount, account: Account = ALICE, directory: str | None = None
) -> str:
    """Run a shell script in a container of an account and return what it wrote, standard error last."""
    started = world.shell(script, account=account, volumes=volumes, working_directory=directory)
    text = started.streams.read_to_end() + started.streams.read_to_end(started.streams.stderr)
    started.wait()
    return text.decode()


def check(world: RuntimeWorld, volumes: Sequence[Mount] = (), **spec: str) -> None:
    """Ask whether a container of Alice's could start."""
    world.runtime.check(JobSpec(("true",), "docker", image=world.image, volumes=tuple(volumes), **spec), ALICE)  # type: ignore[arg-type]


def owned(path: Path, mode: int = 0o700, owner: Account = ALICE) -> Path:
    """Make a directory that is Alice's, or another's."""
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner.uid, owner.gid)
    return path
