"""Decides which tests can run on this machine, and says why the others are skipped.

A missing engine, GPU or framework is a printed reason, never a silent pass. Where a test run must not skip (CI), name
the markers in PGPU_REQUIRED_MARKERS (`docker,userns`): what is missing then fails instead. It refuses to start
services: `tools/docker-engine` does that.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from tests.examples import examples
from tests.native_clients import framework_python

from pgpu.host.stderr_log import log_to_stderr

settings.register_profile("pgpu", examples(30, 100, deadline=None, derandomize=True))
settings.load_profile("pgpu")
log_to_stderr()  # as every program of pgpu does
gc.set_threshold(200_000, 10, 10)  # a tenth of a worker's time went into looking for cycles among the collected tests
for _name in ("COLUMNS", "LINES"):  # readline, which pytest loads, sets them for the processes that run the tests
    os.environ.pop(_name, None)

CHROMIUM = "/usr/bin/chromium"
"""Of Debian's package."""

_FRAMEWORKS = ("torch", "jax", "tensorflow")
_PROBE_TIMEOUT_SECONDS = 240


def _why_no_docker(_marker: pytest.Mark) -> str | None:
    return _failure_of_docker()


@cache
def _failure_of_docker() -> str | None:
    code = (
        "from pgpu.runtimes.docker.docker_engine import DockerEngine, engine_url; DockerEngine(engine_url()).version()"
    )
    return _failure_of_python(code, "no Docker engine answers")


def _why_no_podman(_marker: pytest.Mark) -> str | None:
    if "PGPU_PODMAN_HOST" not in os.environ:
        return "PGPU_PODMAN_HOST names no Podman (tools/podman-engine start prints one)"
    return _failure_of_podman(os.environ["PGPU_PODMAN_HOST"])


@cache
def _failure_of_podman(url: str) -> str | None:
    code = f"from pgpu.runtimes.docker.docker_engine import DockerEngine; DockerEngine({url!r}).version()"
    return _failure_of_python(code, "no Podman answers")


def _why_no_userns(_marker: pytest.Mark) -> str | None:
    return _failure_of_userns()


@cache
def _failure_of_userns() -> str | None:
    command = ("unshare", "--user", "--map-root-user", "--mount", "true")
    return _failure_of(command, "no private user and mount namespace can be made")


def _why_no_gpu(_marker: pytest.Mark) -> str | None:
    return _failure_of_gpu()


@cache
def _failure_of_gpu() -> str | None:
    # In a process of its own: NVIDIA's NVML, once loaded here, would hide the simulated one of the same SONAME.
    code = "import pynvml; pynvml.nvmlInit(); assert pynvml.nvmlDeviceGetCount() > 0"
    return _failure_of_python(code, "no NVIDIA GPU answers")


def _why_no_frameworks(marker: pytest.Mark) -> str | None:
    wanted = marker.args or _FRAMEWORKS
    missing = [name for name in wanted if not framework_python(name).exists()]
    return f"not installed: {', '.join(missing)} (`make test-frameworks` installs them)" if missing else None


def _why_no_kubernetes(_marker: pytest.Mark) -> str | None:
    # Its own variable, since KUBECONFIG often names a cluster that people work on, and these tests kill and restart.
    if not os.environ.get("PGPU_TEST_KUBECONFIG"):
        return "PGPU_TEST_KUBECONFIG names no cluster (`make test-kubernetes` takes that of KUBECONFIG)"
    return _failure_of_kubernetes(os.environ["PGPU_TEST_KUBECONFIG"])


@cache
def _failure_of_kubernetes(kubeconfig: str) -> str | None:
    return _failure_of(
        ("kubectl", "--kubeconfig", kubeconfig, "get", "--raw", "/readyz"), "no Kubernetes cluster answers"
    )


def _why_no_node_shell(_marker: pytest.Mark) -> str | None:
    return None if os.environ.get("PGPU_KUBERNETES_NODE_SHELL") else _NO_NODE_SHELL


def _why_no_node_power(_marker: pytest.Mark) -> str | None:
    return None if os.environ.get("PGPU_KUBERNETES_NODE_RESTART") else _NO_NODE_POWER


_NO_NODE_SHELL = "PGPU_KUBERNETES_NODE_SHELL names no shell on {node} (`docker exec -i {node}` where nodes are kind's)"
_NO_NODE_POWER = (
    "PGPU_KUBERNETES_NODE_RESTART names no way to restart {node} (`docker restart -t 0 {node}` where nodes are kind's)"
)


def _why_no_browser(_marker: pytest.Mark) -> str | None:
    if find_spec("playwright") is None:
        return "Playwright is not installed"
    return None if Path(CHROMIUM).exists() else f"there is no {CHROMIUM} (apt-get install chromium)"


def _failure_of_python(code: str, what: str) -> str | None:
    return _failure_of((sys.executable, "-c", code), what)


def _failure_of(command: tuple[str, ...], what: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{what}: {error}"
    if done.returncode == 0:
        return None
    last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{what}: {last_line}"


_CHECKS: dict[str, Callable[[pytest.Mark], str | None]] = {
    "browser": _why_no_browser,
    "docker": _why_no_docker,
    "podman": _why_no_podman,
    "userns": _why_no_userns,
    "gpu": _why_no_gpu,
    "kubernetes": _why_no_kubernetes,
    "kubernetes_nodes": _why_no_node_shell,
    "kubernetes_power": _why_no_node_power,
    "frameworks": _why_no_frameworks,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker names something that this machine has not; fail it where that was required."""
    required = {name for name in os.environ.get("PGPU_REQUIRED_MARKERS", "").split(",") if name}
    for name, why_not in _CHECKS.items():
        marker = item.get_closest_marker(name)
        reason = why_not(marker) if marker else None
        if reason is None:
            continue
        if name in required:
            pytest.fail(f"{name} is required by PGPU_REQUIRED_MARKERS, and {reason}", pytrace=False)
        pytest.skip(reason)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of properties, which `make test-soak` runs with all their examples."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("examples")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take the collected tests out of all later collections of cycles, and their pages out of what forked children copy."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_mount_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """See to it that pytest can remove its directories: what is mounted in one of them stays until the machine restarts."""
    yield
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    below = f"{tmp_path_factory.getbasetemp()}/"
    assert not [line for line in lines if line.split(" ")[1].startswith(below)]
