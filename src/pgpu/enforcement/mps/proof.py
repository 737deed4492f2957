"""Proves that a job's programs really are clients of MPS: a wrong pipe directory runs without it, and says nothing.

A throw-away process, started as the job will be, makes a context and waits; then the daemon must know it for a client, and
where it has a percentage it must see that share of the multiprocessors. This module refuses to believe the process alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.enforcement.mps.control import MpsControl
from pgpu.errors import EnforcementError, RequestError
from pgpu.model import Account, Delivery, Job

Owns = Callable[[int], bool]
"""Whether a process of the host is part of the throw-away job."""

HoldThrowaway = Callable[[Job, Delivery, Account | None, Callable[[str, Owns], None]], None]
"""Starts a job under an account whose program waits once it said `ready`, calls back with what it wrote until then, and ends it."""


@dataclass(frozen=True, slots=True)
class MpsProof:
    """What is proved of one way into jobs."""

    hold: HoldThrowaway

    def prove(self, test: Job, delivery: Delivery, control: MpsControl, account: Account | None, uid: int) -> None:
        """Run the throw-away job.

        Args:
            test: With a slice and a delivery of its own, and the probe that waits as its command.
            delivery: With the words of MPS.
            control: The daemon.
            account: Under which the job will run; None for this process's own.
            uid: As whom its programs should run: only one user's meet under a daemon.

        Raises:
            RequestError: They run as another user.
            EnforcementError: Its program is no client of this daemon.
        """
        self.hold(test, delivery, account, lambda text, owns: _judge(_answers(text), control, uid, owns))


def _judge(answers: dict[str, str], control: MpsControl, uid: int, owns: Owns) -> None:
    if answers.get("context") != "0":
        said = ", ".join(f"{step} {answer}" for step, answer in answers.items()) or "nothing"
        raise EnforcementError(
            f"a client of MPS cannot use GPU {control.gpu_uuid}; the driver said: {said}",
            hint=f"see {control.log_directory / 'control.log'}",
        )
    own = [pid for pid in all_clients(control) if owns(pid)]
    if not own:
        raise EnforcementError(
            f"a program that was started under MPS on GPU {control.gpu_uuid} is no client of the control daemon",
            hint="nothing is started without it: the job's user must be the daemon's, and its pipe directory reachable",
        )
    seen_uid = Path(f"/proc/{own[0]}").stat().st_uid
    if seen_uid != uid:
        raise RequestError(
            f"programs of this job run as user {seen_uid} and not {uid}, and MPS brings one user's together alone",
            hint=f"add --user {seen_uid}",
        )


def all_clients(control: MpsControl) -> Sequence[int]:
    """Return the PIDs of all clients of all servers of a daemon."""
    return [pid for server in control.servers() or () for pid in control.clients(server) or ()]


def _answers(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
