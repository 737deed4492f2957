"""Who can be killed in a storm, where they are found, and how: what the storms over whole machines share."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from pgpu.host.process_identity import identify_running
from pgpu.libraries import CHECKPOINT
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


def keeper(runtime_root: Path) -> ProcessHolder | None:
    """Return who keeps the queue of a place."""
    for path in runtime_root.glob("*/keepers/*.lock"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return ProcessHolder(**json.loads(path.read_text())["process"])
    return None


def zygote(runtime_root: Path) -> ProcessHolder | None:
    """Return the process that the keeper of a place starts supervisors from."""
    found = keeper(runtime_root)
    pids = [] if found is None else children(found.pid)
    return identify_running(pids[0]) if pids else None


def children(pid: int) -> list[int]:
    """Return the children of a process's main thread; none where it is gone."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def helpers(supervisor_pid: int) -> list[int]:
    """Return those who ask the driver for a step of a checkpoint on behalf of a supervisor's threads now."""
    found = []
    for path in Path(f"/proc/{supervisor_pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return [pid for pid in found if _name(pid) == CHECKPOINT]


def _name(pid: int) -> str:
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
