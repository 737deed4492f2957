"""Verifies that a job's programs are clients of MPS: with a wrong pipe directory they run without MPS and without an error.

A throwaway process, started like the job, creates a context and waits. The daemon must then list it as a client. The
process's own output is not sufficient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgpu.enforcement.mps.control import MpsControl
from pgpu.errors import EnforcementError, RequestError
from pgpu.model import Account, Delivery, Job

Owns = Callable[[int], bool]
"""True if a process of the host is part of the throwaway job."""

HoldThrowaway = Callable[[Job, Delivery, Account | None, Callable[[str, Owns], None]], None]
"""Starts a job under an account, waits until its program prints `ready`, calls back with the output so far, and ends it."""


@dataclass(frozen=True, slots=True)
class MpsProof:
    """The verification for one way of delivery."""

    hold: HoldThrowaway

    def prove(self, test: Job, delivery: Delivery, control: MpsControl, account: Account | None, uid: int) -> None:
        """Run the throwaway job and check its process in the daemon's client list.

        Args:
            test: With a slice and a delivery of its own, and the waiting probe as its command.
            delivery: With the environment of MPS.
            control: The daemon.
            account: Under which the job will run; None for this process's own.
            uid: Expected user of its programs: all clients of a daemon must have the same user.

        Raises:
            RequestError: They run as another user.
            EnforcementError: Its program is not a client of this daemon.
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
