"""Who can be killed in a storm, where they are found, and how: what the storms over whole machines share."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from pgpu.host.process_identity import identify_running, read_status
from pgpu.libraries import CHECKPOINT, MONITOR
from pgpu.model import ContainerHolder, Holder, ProcessHolder


def kill(holder: ProcessHolder | None) -> bool:
    """Kill exactly this process; not waited for, since what happens in between is what is asked about."""
    if holder is None or identify_running(holder.pid) != holder:
        return False
    os.kill(holder.pid, signal.SIGKILL)
    return True


def main_process(holder: Holder | None) -> ProcessHolder | None:
    """Return a job's own process, in a container too; None where there is none."""
    if not isinstance(holder, ContainerHolder):
        return holder if isinstance(holder, ProcessHolder) else None
    words = ["docker", "inspect", "--format", "{{.State.Pid}}", holder.container_id]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return identify_running(int(done.stdout)) if done.returncode == 0 and int(done.stdout) else None


def agent(runtime_root: Path) -> ProcessHolder | None:
    """Return the agent of a place."""
    for path in runtime_root.glob("*/keepers/*.lock"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return ProcessHolder(**json.loads(path.read_text())["process"])
    return None


def guard(runtime_root: Path) -> ProcessHolder | None:
    """Return the guard of a place's agent."""
    found = agent(runtime_root)
    status = None if found is None else read_status(found.pid)
    parent = None if status is None else identify_running(status.parent_pid)
    return parent if parent is not None and name_of(parent.pid) == MONITOR else None


def monitor_of(record: Path) -> int | None:
    """Return the PID of the monitor that wrote a record of a start."""
    with contextlib.suppress(OSError):
        for line in record.read_text("ascii").rstrip("\0").splitlines():
            if line.startswith("monitor="):
                return int(line.removeprefix("monitor="))
    return None


def children(pid: int) -> list[int]:
    """Return the children of a process's main thread; none where it is gone."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


def helpers(supervisor_pid: int) -> list[int]:
    """Return those who ask the driver for a step of a checkpoint on behalf of a supervisor's threads now."""
    found = []
    for path in Path(f"/proc/{supervisor_pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return [pid for pid in found if name_of(pid) == CHECKPOINT]


def name_of(pid: int) -> str:
    """Return the file name of a process's program; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


def processes_of(path: Path) -> dict[int, str]:
    """Return who has a place in its environment, by PID with its words: whatever pgpu started, jobs and supervisors too."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(path).encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
