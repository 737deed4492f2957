"""The unit of `deploy/systemd`: systemd reads it, and nothing in it takes from jobs what they need of the machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pgpu.app.settings import Settings
from pgpu.client.address import SYSTEM_SOCKET

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "pgpu.service"
SOCKET = UNIT.with_suffix(".socket")

NAMESPACING = [
    "PrivateTmp",
    "PrivateDevices",
    "PrivateMounts",
    "PrivateUsers",
    "PrivateNetwork",
    "ProtectSystem",
    "ProtectHome",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectKernelLogs",
    "ProtectControlGroups",
    "ProtectProc",
    "ProcSubset",
    "MountFlags",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "InaccessiblePaths",
    "ExecPaths",
    "NoExecPaths",
    "TemporaryFileSystem",
    "BindPaths",
    "BindReadOnlyPaths",
    "RootDirectory",
    "RootImage",
    "MountImages",
    "DynamicUser",
    "RestrictNamespaces",
    "ProtectHostname",
    "User",
    "Group",
]
"""With one of these the service lives in a mount namespace of its own, may make none, or is not root.

Source: systemd.exec(5).
"""

INHERITED = ["MemoryDenyWriteExecute", "RestrictSUIDSGID", "LockPersonality", "RestrictRealtime"]
"""What processes of jobs would inherit, though users' programs do it: compilers at run time, `chmod g+s`, debuggers, SCHED_FIFO."""

MOST_EXPOSURE = 70
"""Tenths of `systemd-analyze security` (6.7 by systemd 252; versions weigh differently): the service is root's, and its jobs see the
machine as their users do."""


def settings() -> dict[str, str]:
    lines = [
        line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line and line[0] != "#"
    ]
    return dict(lines)


def test_systemd_reads_the_unit() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    done = subprocess.run(["systemd-analyze", "verify", UNIT, SOCKET], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_can_do_no_more_than_jobs_need() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(UNIT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()


@pytest.mark.parametrize("name", [*NAMESPACING, "DevicePolicy", *INHERITED])
def test_jobs_keep_the_machines_mounts_and_devices(name: str) -> None:
    assert name not in settings()


def test_every_gpu_is_among_the_allowed_devices() -> None:
    found = settings()
    # ProtectClock alone would allow clocks, and with them nothing else.
    assert (found["DeviceAllow"], found["ProtectClock"]) == ("char-* rwm", "yes")


def test_a_restart_ends_no_job_and_keeps_their_slices() -> None:
    found = settings()
    assert (found["KillMode"], found["RuntimeDirectoryPreserve"], found["SendSIGKILL"]) == ("process", "yes", "no")


def test_the_socket_is_where_commands_look_and_open_to_the_group_that_may_submit() -> None:
    lines = SOCKET.read_text(encoding="utf-8").splitlines()
    assert f"ListenStream={SYSTEM_SOCKET}" in lines
    assert f"SocketGroup={Settings().submitters}" in lines
    assert "SocketMode=0660" in lines


def test_state_is_roots_and_users_pass_through_to_the_socket() -> None:
    found = settings()
    assert (found["StateDirectoryMode"], found["RuntimeDirectoryMode"]) == ("0700", "0711")
