"""Descriptors that the agent's guard keeps, so that they outlive a job's monitor and the agent if both are killed.

The guard (native/monitor/kept.c; the protocol is in guard.c) holds the read ends of a job's pipes, or the master side of its
terminal, from the job's start until its end. Each agent inherits one end of a socket to its guard. Requests are sent without
waiting: a guard that is stopped costs a job this protection, never its start or end. All functions may be called in any thread.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Sequence

from pgpu.host.thread_turns import pause

_PATIENCE_MS = 5000
_MOST_DESCRIPTORS = 2
_INT = struct.Struct("i")

_lock = threading.Lock()
_guards: list[socket.socket] = []
"""The socket to the guard; empty in a process that is no agent."""

_undelivered: list[str] = []
"""Jobs whose descriptors the guard did not drop yet, since its queue was full; they go first, so that none is kept for ever."""


def use_guard(descriptor: int) -> None:
    """Use the socket that this process inherited from its guard; no program that it starts inherits it."""
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - its only form
    guard = socket.socket(fileno=descriptor)
    guard.setblocking(False)  # noqa: FBT003 - its only form
    _guards.append(guard)


def keep(job_id: str, descriptors: Sequence[int]) -> None:
    """Have the guard keep one or two descriptors in place of what it keeps for this job; they stay open here as well.

    It keeps those of 1024 jobs, or as many as its limit of open files allows.
    """
    with _lock:
        if _deliver_drops():
            _send(f"keep {job_id}", descriptors)


def drop(job_id: str) -> None:
    """Have the guard close what it keeps for a job that has ended."""
    with _lock:
        _undelivered.append(job_id)
        _deliver_drops()


def take(job_id: str) -> list[int]:
    """Return copies of what the guard keeps for a job; empty if there is nothing, or no answer within five seconds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs, _lock:
            if not _send(f"take {job_id}", [theirs.fileno()]):
                return []
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        with pause():
            is_answered = poll.poll(_PATIENCE_MS)
        if not is_answered:
            return []
        # Not `socket.recv_fds`, which ignores its flags: a program that another thread starts could inherit the descriptors.
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT.size)
        _, messages, _, _ = ours.recvmsg(len(job_id), space, socket.MSG_CMSG_CLOEXEC)
        return [number for _, _, data in messages for (number,) in _INT.iter_unpack(data)]


def _deliver_drops() -> bool:
    while _undelivered and _send(f"drop {_undelivered[0]}", []):
        del _undelivered[0]
    return not _undelivered


def _send(request: str, descriptors: Sequence[int]) -> bool:
    """Send one request; True too if no guard could ever answer it."""
    if not _guards:
        return True
    try:
        socket.send_fds(_guards[0], [request.encode()], descriptors)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the guard was killed, and this agent becomes the next one
    return True
