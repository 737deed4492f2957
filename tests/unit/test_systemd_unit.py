"""The units of `deploy/systemd`: systemd reads them, the server's is closed, and nothing in the agent's takes from jobs what they need."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pgpu.app.settings import Settings
from pgpu.client.address import SYSTEM_SOCKET
from pgpu.engine.agent.agents import AWAIT_LOCK

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "pgpu.service"
SOCKET = UNIT.with_suffix(".socket")
AGENT = UNIT.with_name("pgpu-agent@.service")

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

MOST_EXPOSURE = {UNIT: 50, AGENT: 70}
"""Tenths of `systemd-analyze security` (4.6 and 6.7 by systemd 252; versions weigh differently): the agent's jobs see the machine as
their users do."""


def settings(unit: Path = AGENT) -> dict[str, str]:
    lines = [
        line.split("=", 1) for line in unit.read_text(encoding="utf-8").splitlines() if "=" in line and line[0] != "#"
    ]
    return dict(lines)


def test_systemd_reads_the_unit() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    done = subprocess.run(
        ["systemd-analyze", "verify", UNIT, SOCKET, AGENT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", [UNIT, AGENT])
def test_the_services_can_do_no_more_than_they_or_jobs_need(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    words = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE[unit]}", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()


@pytest.mark.parametrize("name", [*NAMESPACING, "DevicePolicy", *INHERITED])
def test_jobs_keep_the_machines_mounts_and_devices(name: str) -> None:
    assert name not in settings()


def test_every_gpu_is_among_the_allowed_devices() -> None:
    found = settings()
    # ProtectClock alone would allow clocks, and with them nothing else.
    assert (found["DeviceAllow"], found["ProtectClock"]) == ("char-* rwm", "yes")


def test_the_server_can_try_private_views_and_volumes_of_users() -> None:
    assert set(settings(UNIT)["RestrictNamespaces"].split()) == {"mnt", "user"}


@pytest.mark.parametrize("unit", [UNIT, AGENT])
def test_a_restart_ends_no_job_and_keeps_their_slices(unit: Path) -> None:
    found = settings(unit)
    assert (found["KillMode"], found["SendSIGKILL"]) == ("process", "no")
    assert settings(UNIT)["RuntimeDirectoryPreserve"] == "yes"


def test_the_agents_of_the_server_s_unit_are_instances_of_the_other_one() -> None:
    state, unit = (each.split("=")[1] for each in settings(UNIT)["Environment"].split())
    assert AGENT.name == f"{unit}@.service"
    assert settings()["ExecStart"] == f"/usr/bin/env pgpu-agent --state-dir {state} agent %I {AWAIT_LOCK}"


def test_the_socket_is_where_commands_look_and_open_to_the_group_that_may_submit() -> None:
    lines = SOCKET.read_text(encoding="utf-8").splitlines()
    assert f"ListenStream={SYSTEM_SOCKET}" in lines
    assert f"SocketGroup={Settings().submitters}" in lines
    assert "SocketMode=0660" in lines


def test_state_is_roots_and_users_pass_through_to_the_socket() -> None:
    found = settings(UNIT)
    assert (found["StateDirectoryMode"], found["RuntimeDirectoryMode"]) == ("0700", "0711")
