"""The image that deploy/image builds: what goes into it, and that driver and slices work in it."""

import json
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
BASE = "pgpu-test:foreign"
IMAGE = "pgpu-test:driver"
READ_ONLY = (
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp",
    "--tmpfs=/run/pgpu:exec,mode=755",
    "--env=PGPU_RUNTIME_DIR=/run/pgpu",
)
"""As the DaemonSet runs it, without the privileges that only a cluster's node has to give."""


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_the_wheel_is_made_of_is_in_the_build_context_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {"pyproject.toml", "CMakeLists.txt", "src", "native", "simgpu"}
    assert allowed == needed
    assert all((ROOT / name).exists() for name in allowed)
    assert lines[1] == "*"
    assert any(fnmatch("src/pgpu/_native", line) for line in lines)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"there is no {BASE}: tools/test-image foreign makes it")
    file = "deploy/image/Containerfile"
    docker("build", "--network=host", f"--file={ROOT / file}", f"--build-arg=BASE={BASE}", f"--tag={IMAGE}", str(ROOT))
    yield IMAGE
    docker("image", "rm", IMAGE)


@pytest.mark.docker
@pytest.mark.soak
def test_the_image_has_all_that_the_driver_needs(image: str) -> None:
    assert "--node-name" in docker("run", "--rm", *READ_ONLY, image, "kubernetes", "driver", "--help")
    refused = subprocess.run(
        [
            "docker",
            "run",
            "--rm",
            *READ_ONLY,
            image,
            "kubernetes",
            "driver",
            "--node-name=n",
            "--state-dir=/tmp/s",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "no way to Kubernetes' API server" in refused.stderr


@pytest.mark.docker
@pytest.mark.soak
def test_a_slice_binds_in_the_image(image: str) -> None:
    words = ("--state-dir=/tmp/s", "--simulate=H100", "run", "--memory=4GiB", "--")
    hog = ("python3", "-m", "pgpu.workloads", "hog", "--seconds=0.1")
    told = json.loads(docker("run", "--rm", *READ_ONLY, image, *words, *hog))
    assert 3 << 30 < told["held_bytes"] <= 4 << 30
    assert told["refusals"]
