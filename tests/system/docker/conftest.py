"""What the container tests share: the test images, plain `docker`, and a place that proved its limits once for all of them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place, opened_place
from tests.waiting import DEADLINE_SECONDS

IMAGE = os.environ.get("PGPU_TEST_IMAGE", "pgpu-test")
_TAGS = frozenset({"latest", "tiny", "user", "preload", "musl"})


def docker(*words: str, stdin: bytes | None = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run plain `docker`."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    done = subprocess.run(["docker", *words], capture_output=True, timeout=DEADLINE_SECONDS, check=False, **given)
    assert done.returncode == 0 or not check, f"docker {' '.join(words)}: {done.stderr.decode(errors='replace')}"
    return done


@pytest.fixture(scope="session")
def images() -> str:
    """The repository of the test images; skips, with the reason, where they were not made."""
    found = docker("image", "ls", "--format", "{{.Tag}}", IMAGE).stdout.decode().split()
    missing = _TAGS - set(found)
    if missing:
        pytest.skip(f"test images are missing: {', '.join(sorted(missing))} (tools/test-image makes them)")
    return IMAGE


@pytest.fixture(scope="module")
def shared_place() -> Iterator[Place]:
    """A place for tests that leave nothing behind."""
    with opened_place() as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user of the machine can reach."""
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
