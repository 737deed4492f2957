"""The shell blocks of README and guide run as they stand, on a simulated GPU and with processes."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.forked_commands import shell_command
from tests.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "README.md",
    pytest.param("docs/guide/first-steps.md", marks=pytest.mark.soak),
    "docs/guide/functions.md",
    "examples/README.md",
    "docs/guide/queue.md",
    "docs/guide/learning.md",
    "docs/guide/compute.md",
    pytest.param("docs/guide/oversubscription.md", marks=pytest.mark.soak),
    "docs/guide/advice.md",
    pytest.param("docs/guide/profiling.md", marks=pytest.mark.soak),
)
_END = "trap 'kill $(jobs -p) || :' EXIT"
"""What a block left in the background would keep its output open."""

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    blocks = _BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert blocks, f"{page} has no shell block"
    bin_directory = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PGPU_STATE_DIR": str(tmp_path / "state"),
    }
    # Short names: a socket's path has 107 bytes at most.
    with shell_command() as (first, descriptor), tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            ["bash", "-eux", "-o", "pipefail", "-c", "\n".join([_END, *blocks])],
            cwd=ROOT,
            env={**environment, "PATH": f"{first}:{environment['PATH']}", "TMPDIR": directory},
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
