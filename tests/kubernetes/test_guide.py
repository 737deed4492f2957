"""The commands of docs/guide/kubernetes.md, in order, in one shell: on a cluster where no driver is yet, or from the making of one on."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "guide" / "kubernetes.md"
DRIVER = "gpu.pgpu.io"

_BLOCK = re.compile(r"^```(sh|sh kind)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(*kinds: str) -> list[str]:
    found = [(kind, text) for kind, text in _BLOCK.findall(PAGE.read_text("utf-8")) if kind in kinds]
    assert {kind for kind, _ in found} == set(kinds)
    return [text for _, text in found]


def run(texts: list[str], kubeconfig: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", "\n".join(texts)],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "KUBECONFIG": kubeconfig},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check(told: str) -> None:
    """What the page says of what one sees is so."""
    hogs = [json.loads(line) for line in told.splitlines() if line.startswith('{"')]
    held_gib = [hog["held_bytes"] / (1 << 30) for hog in hogs]
    assert [most - 1 < each <= most for each, most in zip(held_gib, (24, 40, 4), strict=True)] == [True] * 3, held_gib
    assert all(hog["refusals"] for hog in hogs)
    assert "it asks for 24 GiB, and no node that is open to it has that free" in told


@pytest.mark.kubernetes
def test_the_guide_runs_where_no_driver_is_yet() -> None:
    kubeconfig = os.environ["PGPU_TEST_KUBECONFIG"]
    words = ["kubectl", "--kubeconfig", kubeconfig, "get", "resourceslices", "--output", "json"]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["items"]
    if any(each["spec"]["driver"] == DRIVER for each in found):
        pytest.skip("a driver publishes GPUs there already, and the guide begins without one")
    check(run(blocks("sh"), kubeconfig))


@pytest.mark.skipif(shutil.which("kind") is None, reason="kind, which makes the guide's cluster, is not here")
@pytest.mark.docker
def test_the_guide_runs_from_an_empty_machine_on(tmp_path: Path) -> None:
    check(run(blocks("sh", "sh kind"), str(tmp_path / "kubeconfig")))
