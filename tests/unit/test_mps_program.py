"""Where the MPS control program is looked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_FIND = "from pgpu.enforcement.mps import find_control; print(find_control(is_simulated=False))"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_a_directory_of_path_that_is_closed_to_the_user_is_left_out(tmp_path: Path) -> None:
    closed, program = tmp_path / "closed", tmp_path / "open" / "nvidia-cuda-mps-control"
    closed.mkdir(mode=0o700)
    program.parent.mkdir()
    program.touch(mode=0o755)
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o011)
    code = f"import os; os.environ['PATH'] = '{closed}/bin:{program.parent}'; os.setuid(65534); {_FIND}"
    code = f"import pgpu.enforcement.mps.daemon_process; {code}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(program)
