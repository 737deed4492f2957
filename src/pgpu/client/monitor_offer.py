"""Offers the agent a monitor that this process started, for one attached job.

The job then keeps this process's control group, niceness, affinity and namespaces. The monitor has a session of its own and
outlives this process with the job. See `pgpu.engine.agent.monitor_offers` for the agent's side.
"""

import os
import resource
import socket
from contextlib import suppress

from pgpu.engine.agent.agents import MONITOR, Agents
from pgpu.errors import NodeError
from pgpu.runtimes.job_monitor import reap_ended_monitors, start_idle_monitor

_LEAST_LIMITS = {
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_FSIZE: resource.RLIM_INFINITY,
    resource.RLIMIT_CPU: resource.RLIM_INFINITY,
}
"""Hard limits that a monitor needs: a descriptor for each client, a log as large as its cap, and time for all output."""


def may_offer() -> bool:
    """Whether a monitor works under this process's hard limits; if not, the agent starts it under its own."""
    hard = {number: resource.getrlimit(number)[1] for number in _LEAST_LIMITS}
    return all(
        hard[number] == resource.RLIM_INFINITY or hard[number] >= least != resource.RLIM_INFINITY
        for number, least in _LEAST_LIMITS.items()
    )


class MonitorOffer:
    """The offer for one job; `renew` repeats it for another agent or another try of the job."""

    def __init__(self, agents: Agents, job_id: str, gpu_model: str | None) -> None:
        """Offer nothing yet; the agents are those of the job's ledger, the GPU model is that of its queue."""
        self._agents = agents
        self._job_id = job_id
        self._gpu_model = gpu_model
        self._connection: socket.socket | None = None
        self._is_taken = False

    def renew(self) -> None:
        """Offer a monitor unless an agent has an offer, or has taken it; no effect without an agent.

        Where no process can be created the agent starts the monitor itself.
        """
        if self._is_taken or self._is_offered():
            return
        self.close()
        with suppress(OSError, NodeError):
            connection = self._agents.connect(self._gpu_model)
            self._connection = connection
            self._send(connection)

    @property
    def descriptor(self) -> int | None:
        """Readable once the agent takes the offer or ends; None without an offer, or after one that was taken."""
        return None if self._connection is None or self._is_taken else self._connection.fileno()

    def expect_another_start(self) -> None:
        """Have `renew` make another offer after one that was taken: that start is over, or its agent was killed."""
        self._is_taken = False

    def close(self) -> None:
        """Withdraw an offer that no agent has taken, which ends its monitor, and reap monitors that have ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        reap_ended_monitors()

    def _send(self, connection: socket.socket) -> None:
        pid, order_socket = start_idle_monitor()
        with order_socket:
            pidfd = os.pidfd_open(pid)
            try:
                socket.send_fds(
                    connection, [b"%s%s\n" % (MONITOR, self._job_id.encode())], [order_socket.fileno(), pidfd]
                )
            finally:
                os.close(pidfd)

    def _is_offered(self) -> bool:
        if self._connection is None:
            return False
        try:
            # One byte for an offer that was taken; none where the agent has ended.
            self._is_taken = bool(self._connection.recv(1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return self._is_taken
