"""Client of NVIDIA's `nvidia-cuda-mps-control`, or of the simulated one, and the environment and proof of a job under it.

It uses version 2 of the interface, which every driver with MPS has. An unexpected response is an error. A missing
response does not mean that the daemon died: on a busy machine it may be slow, so its process is checked instead.

With a wrong pipe directory a program runs without MPS and without an error. So a throwaway process, started like the job,
creates a context and waits, and the daemon must list it as a client. The process's own output is not sufficient.

Source: NVIDIA Multi-Process Service, appendix Tools and Interface Reference; nvidia-cuda-mps-control(1).
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.enforcement.mps.daemon_process import end_servers, is_there
from pgpu.enforcement.self_test import parse_answers
from pgpu.errors import EnforcementError, RequestError
from pgpu.host.thread_turns import pause
from pgpu.model import Account, Delivery, Job, Slice
from pgpu.structs import Struct
from pgpu.units import MIB

if TYPE_CHECKING:
    import subprocess

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"

_UMASK = 0o022
"""Umask of the daemon: clients of other users must be able to open its sockets."""

_START_SECONDS = 60.0
"""The first start initialises the GPUs of a cold machine."""

_ANSWER_SECONDS = 5.0
_MOST_PATH_BYTES = 107
"""Source: unix(7), sun_path, without the terminating zero."""

_LONGEST_SOCKET = "control_privileged"


class ServerStatus(StrEnum):
    """Status that a server reports."""

    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    """One of its clients faulted; no new client is accepted until all affected clients are gone."""


class MpsControl(Struct, frozen=True):
    """A control daemon, alive or not, identified by its pipe directory."""

    program: Path
    pipe_directory: Path
    log_directory: Path
    gpu_uuid: str
    """The one GPU or MIG instance of its servers."""

    simulated_state_directory: Path | None = None
    """Of the simulated GPUs; None on real ones."""

    def start(self) -> None:
        """Start the daemon in the background; its directories exist already.

        Raises:
            EnforcementError: It does not start, or one runs there already.
        """
        longest = os.fsencode(self.pipe_directory / _LONGEST_SOCKET)
        if len(longest) > _MOST_PATH_BYTES:
            raise EnforcementError(
                f"{self.pipe_directory} is too long a name for a socket", hint="set runtime_dir to a shorter one"
            )
        try:
            done = self._run("-d", None, _START_SECONDS)
        except OSError as exc:
            raise EnforcementError(f"the MPS control daemon does not start: {exc}") from exc
        # On a loaded machine the first answer takes longer than a later one may.
        if done.returncode != 0 or self.ask("get_server_list", _START_SECONDS) is None:
            lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
            raise EnforcementError(
                f"the MPS control daemon does not start: {lines[-1] if lines else f'it ended with {done.returncode}'}",
                hint=f"see {self.log_directory / 'control.log'}",
            )

    def servers(self) -> list[int] | None:
        """Return the PIDs of the servers; None if no daemon responds."""
        answer = self.ask("get_server_list")
        return None if answer is None else _pids(answer)

    def is_there(self) -> bool:
        """True if the daemon's process exists, even if it does not respond."""
        return is_there(self.pipe_directory)

    def end_servers(self) -> None:
        """End the servers that a dead daemon left behind; a living daemon ends its own."""
        end_servers(f"{PIPE_VARIABLE}={self.pipe_directory}")

    def status(self, server_pid: int) -> ServerStatus | None:
        """Return the status of a server; None if the server or the daemon is gone."""
        words = (self.ask(f"get_server_status {server_pid}") or "").upper().split()
        return next((status for status in ServerStatus if status in words), None)

    def clients(self, server_pid: int) -> list[int] | None:
        """Return the PIDs of a server's clients, empty if it is gone; None if no daemon responds."""
        answer = self.ask(f"get_client_list {server_pid}")
        return None if answer is None else _pids(answer)

    def set_percentage(self, percentage: int) -> None:
        """Limit new clients to this share of the multiprocessors, 1 to 100, including clients of running servers."""
        self._require_answer(f"set_default_active_thread_percentage {percentage}")
        # The default applies to servers that start later. A running server keeps its own, which its next clients get.
        for server_pid in self.servers() or ():
            self.ask(f"set_active_thread_percentage {server_pid} {percentage}")

    def percentage(self) -> float:
        """Return the default limit for new clients, in percent.

        Raises:
            EnforcementError: No daemon responds, or the response is not a number.
        """
        answer = self._require_answer("get_default_active_thread_percentage")
        numbers = re.findall(r"\d+(?:\.\d+)?", answer)
        if not numbers:
            raise EnforcementError(f"the MPS control daemon answers {answer.strip()!r}, which is no number")
        return float(numbers[-1])

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Limit the device memory of each new process; whole MiB, rounded up.

        The GPU is named by its ordinal among the daemon's GPUs, of which there is one. An entry for a GPU that a process
        cannot see would disable all its limits.
        """
        limit = f"{-(-limit_bytes // MIB)}M"
        self._require_answer(f"set_default_device_pinned_mem_limit 0 {limit}")
        for server_pid in self.servers() or ():
            self.ask(f"set_device_pinned_mem_limit {server_pid} 0 {limit}")

    def memory_limit(self) -> str:
        """Return the limit of each new process in the daemon's format, such as `512M`."""
        return self._require_answer("get_default_device_pinned_mem_limit 0").strip()

    def terminate(self, server_pid: int, client_pid: int) -> None:
        """End one client's use of the GPU without affecting the others; no effect if it is gone."""
        self.ask(f"terminate_client {server_pid} {client_pid}")

    def quit(self, force_after_seconds: int) -> bool:
        """Stop the daemon and its servers, with a timeout for those that have clients; return True if the daemon accepted it."""
        return self.ask(f"quit -t {force_after_seconds}") is not None

    def ask(self, line: str, timeout_seconds: float = _ANSWER_SECONDS) -> str | None:
        """Return the daemon's output for a command; None if it does not respond in time, or the control program cannot run."""
        try:
            done = self._run(None, f"{line}\n", timeout_seconds)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    def _require_answer(self, line: str) -> str:
        answer = self.ask(line)
        if answer is None:
            raise EnforcementError(f"no MPS control daemon answers at {self.pipe_directory}")
        return answer

    def _run(self, option: str | None, text: str | None, timeout_seconds: float) -> "subprocess.CompletedProcess[str]":
        """Run the control program.

        Raises:
            OSError: It cannot run, or does not end in time.
        """
        import subprocess  # noqa: PLC0415 - most processes ask no daemon

        words = [str(self.program), *([] if option is None else [option])]
        source = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
        try:
            with pause():
                return subprocess.run(
                    words,
                    env=self._environment(),
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=timeout_seconds,
                    check=False,
                    umask=_UMASK,
                    **source,
                )
        except subprocess.TimeoutExpired as exc:
            raise TimeoutError(str(exc)) from exc

    def _environment(self) -> Mapping[str, str]:
        """Environment without this process's own MPS variables, which could select another daemon or limit this one."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_"))}
        kept |= {PIPE_VARIABLE: str(self.pipe_directory), LOG_VARIABLE: str(self.log_directory)}
        kept["CUDA_VISIBLE_DEVICES"] = self.gpu_uuid
        if self.simulated_state_directory is not None:
            kept["PGPU_SIMGPU_DIR"] = str(self.simulated_state_directory)
        return kept


def _pids(text: str) -> list[int]:
    """Parse one PID per line; other lines are messages, such as that a server is gone."""
    return [int(line) for line in text.split("\n") if re.fullmatch(r"\s*\d+\s*", line)]


def percentage_of(compute_share: float | None) -> int:
    """Convert a share of compute to a percentage of the multiprocessors, 1 to 100.

    Source: 4a in docs/mps.md: MPS partitions multiprocessors, not time.
    """
    return 100 if compute_share is None else max(1, min(100, math.ceil(round(100 * compute_share, 6))))


def environment_of(part: Slice, pipe_directory: Path) -> tuple[tuple[str, str], ...]:
    """Return the environment variables for a job's programs.

    The GPU is named by its ordinal, which is 0 in a job of one GPU. An entry for a GPU that a process cannot see would
    disable all its memory limits.
    """
    limit_mib = -(-part.memory_bytes // MIB)
    return (
        (PIPE_VARIABLE, str(pipe_directory)),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(percentage_of(part.compute_share))),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={limit_mib}M"),
    )


Owns = Callable[[int], bool]
"""True if a process of the host is part of the throwaway job."""

HoldThrowaway = Callable[[Job, Delivery, Account | None, Callable[[str, Owns], None]], None]
"""Starts a job under an account, waits until its program prints `ready`, calls back with the output so far, and ends it."""


class MpsProof(Struct, frozen=True):
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
        self.hold(test, delivery, account, lambda text, owns: _judge(parse_answers(text), control, uid, owns))


def _judge(answers: dict[str, str], control: MpsControl, uid: int, owns: Owns) -> None:
    if answers.get("context") != "0":
        results = ", ".join(f"{step} {answer}" for step, answer in answers.items()) or "nothing"
        raise EnforcementError(
            f"a client of MPS cannot use GPU {control.gpu_uuid}; the driver returned: {results}",
            hint=f"see {control.log_directory / 'control.log'}",
        )
    own = [pid for pid in all_clients(control) if owns(pid)]
    if not own:
        raise EnforcementError(
            f"a program that was started under MPS on GPU {control.gpu_uuid} is no client of the control daemon",
            hint="nothing is started without it: the job's user must be the daemon's, and its pipe directory reachable",
        )
    actual_uid = Path(f"/proc/{own[0]}").stat().st_uid
    if actual_uid != uid:
        raise RequestError(
            f"programs of this job run as user {actual_uid} and not {uid}, and MPS brings one user's together alone",
            hint=f"add --user {actual_uid}",
        )


def all_clients(control: MpsControl) -> Sequence[int]:
    """Return the PIDs of all clients of all servers of a daemon."""
    return [pid for server in control.servers() or () for pid in control.clients(server) or ()]
