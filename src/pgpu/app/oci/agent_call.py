"""Hands a container to the agent of the machine's queue, and starts an agent under its guard where there is none.

Does with the standard library what `pgpu.engine.agent.agents` does in processes with all of pgpu; the prepared facts name the
files and programs. The container's record is in its slice before, and an agent that starts reads all records: so a container
needs no message to an agent that is starting.
"""

from __future__ import annotations

import _socket  # `socket` takes 3 ms to import
import fcntl
import json
import os
import select
import time
from contextlib import closing

from pgpu.app.oci.runc_call import ContainerRefusedError, clean_environment, stamp

TYPE_CHECKING = False  # `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any

_ANSWER_SECONDS = 5.0
"""An agent that is busy for longer finds the container's record later."""

_PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_IDENTITY_BYTES = 4096
_DIRECTORY_MODE = 0o700


def hand_over(agent: dict[str, Any], job_id: str) -> None:
    """Have the queue's agent attend a container whose record is written; start an agent if there is none.

    Args:
        agent: The prepared facts about it.
        job_id: The container's slice.

    Raises:
        ContainerRefusedError: No agent can take it.
    """
    deadline_seconds = time.monotonic() + _PATIENCE_SECONDS
    try:
        while not _is_taken(agent, job_id):
            if time.monotonic() > deadline_seconds:
                raise ContainerRefusedError(
                    "the agent of this machine's queue takes no containers",
                    hint="it runs from another installation of pgpu: end it, or use that one's runtime",
                )
            select.select([], [], [], _PAUSE_SECONDS)
    except OSError as exc:
        raise ContainerRefusedError(f"the agent of this machine's queue cannot be reached or started: {exc}") from exc


def _is_taken(agent: dict[str, Any], job_id: str) -> bool:
    os.makedirs(os.path.dirname(agent["lock"]), _DIRECTORY_MODE, exist_ok=True)
    lock = os.open(agent["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            # The new guard inherits the lock: of many processes that find no agent, one starts it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _replace_outdated(agent, lock):
                return _ask(agent["door"], job_id)
        _start(agent, lock)
    finally:
        os.close(lock)
    return True


def _replace_outdated(agent: dict[str, Any], lock: int) -> bool:
    """Ask an agent of an upgraded installation to end; True if another one must be started, which waits for its lock.

    The rules are those of `AgentIdentity.is_outdated`.
    """
    try:
        found = json.loads(os.pread(lock, _IDENTITY_BYTES, 0))
        process, version, package = found["process"], found["version"], found.get("package", "")
        loaded = found.get("package_time_ns"), found.get("package_inode")
    except (ValueError, KeyError, TypeError):
        return False  # it is just being written
    here = stamp(agent["package"]) or [0, 0, 0]
    is_same_code = (version, package, *loaded) == (agent["version"], agent["package"], here[0], here[2])
    if is_same_code or (version == agent["version"] and package not in {"", agent["package"]}):
        return False
    own = {"process": process, "version": agent["version"], "package": agent["package"]}
    own |= {"package_inode": here[2], "package_time_ns": here[0]}
    # From here on no other process finds it outdated.
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(own).encode(), 0)
    with closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)) as sender:
        sender.settimeout(_ANSWER_SECONDS)
        _connect(sender, agent["wake"])
        sender.send(b"go")
    return True


def _ask(door: str, job_id: str) -> bool:
    """Name the container to the agent; False if it may answer otherwise soon.

    Raises:
        ContainerRefusedError: It has no room for another thread.
    """
    with closing(_socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            _connect(connection, door)
        except (FileNotFoundError, ConnectionRefusedError):
            return True  # The lock is held by an agent that starts, or looks for records once more before it ends.
        try:
            connection.sendall(f"container {job_id}\n".encode())
            answer = connection.recv(1)
        except TimeoutError:
            return True
        except ConnectionError:
            return False  # It ended, and looks for records once more; or its successor does.
    if answer == b"-":
        raise ContainerRefusedError(
            "the agent of this machine's queue cannot take another container", hint="its log, agent.log, has the reason"
        )
    return answer == b"+"


def _connect(end: _socket.socket, path: str) -> None:
    # The kernel's limit is 107 bytes, and a runtime directory may be longer.
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)


def _start(agent: dict[str, Any], lock: int) -> None:
    """Start the guard by a double fork, which adopts it to process 1 or a subreaper.

    runc, which replaces this program, would not expect a child that it did not start.
    """
    errors, report = os.pipe()  # its last writing end is closed when the guard's program is executed
    child = os.fork()
    if child == 0:
        _become_guard(agent, lock, report)
    os.close(report)
    os.waitpid(child, 0)
    with open(errors, "rb") as file:
        error = file.read()
    if error:
        raise ContainerRefusedError(f"no agent of this machine's queue can be started: {error.decode()}")


def _become_guard(agent: dict[str, Any], lock: int, report: int) -> None:
    try:
        if os.fork() == 0:
            # Without the container's streams: an open one would keep the container's log open.
            nothing = os.open(os.devnull, os.O_RDWR)
            log = os.open(agent["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for descriptor, target in ((nothing, 0), (nothing, 1), (log, 2)):
                os.dup2(descriptor, target)
            os.set_inheritable(lock, True)  # noqa: FBT003 - its only form
            os.umask(0o077)
            # The guard closes all other descriptors, and begins a session of its own in /.
            words = [agent["guard"], "guard", str(lock), agent["spool"], "--", *agent["command"]]
            os.execve(words[0], words, clean_environment())
    except OSError as exc:
        os.write(report, str(exc).encode())
    finally:
        os._exit(0)
