"""Moves the GPU memory of a process to the host and back through the driver's checkpoint API (NVIDIA r570 or later).

Each step runs in a separate program (`pgpu-checkpoint`), so that a driver that hangs or crashes does not take the
agent down. It works with NVIDIA's library and the simulated one. Callers decide which process moves.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from pgpu.errors import EnforcementError, NodeError
from pgpu.libraries import CHECKPOINT, library_path

OLDEST_CUDA = 12080
"""The first CUDA version with these calls: 12.8, of r570."""

_STEP_SECONDS = 300.0
"""Time limit of one step; 80 GiB over a slow link take a minute, so a longer step means that the driver hangs."""

_MOST_KILLED = 5
"""Retries after the helper process was killed; without a limit, a driver that crashes each time would be called forever."""

_FIRST_PID_NAMESPACE = 4026531836
"""Inode of the machine's initial PID namespace. Source: PROC_PID_INIT_INO in linux/proc_ns.h."""


_PAUSE_SECONDS = 0.05
"""Poll interval for a step in progress."""

_Result = TypeVar("_Result")


class ProcessState(IntEnum):
    """The values of CUprocessState."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


_UNDER_WAY = {ProcessState.CHECKPOINTING, ProcessState.RESTORING}


class _Answer(IntEnum):
    """The values of CUresult that decide the next step."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    OPERATING_SYSTEM = 304
    NOT_READY = 600


_WORDS = {
    2: "there is no room on the GPU",
    304: "the operating system refused",
    401: "it is in a state that does not allow this",
    800: "this user may not do that to it",
    801: "its memory cannot be moved: managed memory, memory shared between processes, or a driver too old for it",
    999: "the driver failed",
}

_GONE = {_Answer.INVALID_VALUE, _Answer.NOT_INITIALIZED}
"""Driver results for a process that has ended, or does not use CUDA."""

_MAYBE_GONE = _GONE | {_Answer.OPERATING_SYSTEM}


class CheckpointError(EnforcementError):
    """A step failed, and a retry would fail as well."""


class KilledError(CheckpointError):
    """The helper process was killed; the process's checkpoint state shows how far the step got."""


class StillWorkingError(CheckpointError):
    """Work in flight did not end in time; the process keeps running."""


class NoRoomError(CheckpointError):
    """The process's memory does not fit onto its GPU now; it stays on the host."""


class Checkpoints:
    """The checkpoint API of one driver."""

    def __init__(
        self,
        cuda_library: Callable[[], Path],
        simulated_state_directory: Path | None = None,
        helper: Callable[[], Path] = lambda: library_path(CHECKPOINT),
        share_host_memory: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call nothing yet.

        Args:
            cuda_library: Returns the path of the driver's own library, not of a shim.
            simulated_state_directory: Of the simulated GPUs; None on real ones.
            helper: Returns the path of the program that calls the driver.
            share_host_memory: Whether the GPUs have no memory of their own: what leaves them stays in the same memory.
        """
        self._helper = helper
        self._cuda_library = cuda_library
        self._simulated = simulated_state_directory
        self._share_host_memory = share_host_memory
        self._are_offered: bool | None = None

    def are_offered(self) -> bool:
        """True if checkpoints free memory, and the driver supports them and uses this process's PIDs; the result is cached."""
        if self._are_offered is None:
            self._are_offered = self._has_our_pids() and not self._share_host_memory() and self._is_new_enough()
        return self._are_offered

    def state(self, pid: int) -> ProcessState | None:
        """Return the checkpoint state of a process; None if it has ended or does not use CUDA.

        Raises:
            CheckpointError: The driver call failed.
        """
        answer, value = self._ask("state", pid)
        if answer in _GONE or (answer == _Answer.OPERATING_SYSTEM and not _uses_driver(pid)):
            return None
        if answer != _Answer.SUCCESS or value not in list(ProcessState):
            raise _failed("state", pid, answer)
        return ProcessState(value)

    def is_away(self, pid: int) -> bool:
        """True if the memory of a process is on the host.

        Raises:
            CheckpointError: The driver call failed.
        """
        return self.state(pid) is ProcessState.CHECKPOINTED

    def leave(self, pid: int, patience_seconds: float) -> None:
        """Move all GPU memory of a process to the host and block its CUDA calls; no effect if it is there already, or has ended.

        Args:
            pid: The host's.
            patience_seconds: Time limit for its work in flight; above 0.

        Raises:
            StillWorkingError: The work took longer; the process keeps running.
            CheckpointError: The memory cannot be moved; the process may be left locked.
        """
        _retry(lambda: self._leave(pid, patience_seconds))

    def _leave(self, pid: int, patience_seconds: float) -> None:
        state = self._state_at_rest(pid)
        if state is ProcessState.RUNNING:
            # The lock waits for the work in flight and blocks new CUDA calls; the driver moves the memory of locked processes only.
            self._step("lock", pid, max(1, round(patience_seconds * 1000)))
            state = ProcessState.LOCKED
        if state is ProcessState.LOCKED:
            self._step("checkpoint", pid)
        elif state not in {None, ProcessState.CHECKPOINTED}:
            raise CheckpointError(f"process {pid} cannot leave its GPU: its driver calls it {state.name.lower()}")

    def come_back(self, pid: int) -> None:
        """Restore the memory of a process and let it continue; no effect if that is done already, or the process has ended.

        Raises:
            NoRoomError: It does not fit onto the GPU now.
            CheckpointError: The driver failed.
        """
        _retry(lambda: self._come_back(pid))

    def _come_back(self, pid: int) -> None:
        state = self._state_at_rest(pid)
        if state is ProcessState.CHECKPOINTED:
            self._step("restore", pid)
            state = ProcessState.LOCKED
        if state is ProcessState.LOCKED:
            self._step("unlock", pid)
        elif state not in {None, ProcessState.RUNNING}:
            raise CheckpointError(f"process {pid} cannot come back: its driver calls it {state.name.lower()}")

    def _state_at_rest(self, pid: int) -> ProcessState | None:
        """Wait for a step in progress to end: the driver completes it even if the helper process was killed."""
        until_seconds = time.monotonic() + _STEP_SECONDS
        while (state := self.state(pid)) in _UNDER_WAY and time.monotonic() < until_seconds:
            threading.Event().wait(_PAUSE_SECONDS)
        return state

    def _step(self, word: str, pid: int, *more: int) -> None:
        answer, _ = self._ask(word, pid, *more)
        # A process may end during the step: the driver then returns the same error as for a wrong call, so its state is read again.
        # A process that is away may have no device open, so OPERATING_SYSTEM is a failure for one that comes back.
        gone = _GONE if word in {"restore", "unlock"} else _MAYBE_GONE
        if answer == _Answer.SUCCESS or (answer in gone and self.state(pid) is None):
            return
        if answer == _Answer.NOT_READY:
            raise StillWorkingError(f"work of process {pid} has not ended in time")
        if answer == _Answer.OUT_OF_MEMORY and word == "restore":
            raise NoRoomError(f"process {pid} cannot come back: {_WORDS[answer]}")
        raise _failed(word, pid, answer)

    def _ask(self, word: str, *more: int) -> tuple[int, int]:
        """Run the helper; return the CUresult and the value that it prints, or -1 where it prints none."""
        import subprocess  # noqa: PLC0415 - most processes move no memory

        try:
            command = [str(self._helper()), str(self._cuda_library()), word, *map(str, more)]
            done = subprocess.run(
                command, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_STEP_SECONDS, check=False,
            )  # fmt: skip
            numbers = [int(number) for number in done.stdout.split()]
            return numbers[0], numbers[1] if len(numbers) > 1 else -1
        except (OSError, subprocess.TimeoutExpired, NodeError) as exc:
            raise CheckpointError(f"the driver could not be called for a {word}: {exc}") from exc
        except (ValueError, IndexError):
            # A negative return code is a signal: the helper may have been killed in the middle of a step.
            if done.returncode < 0:
                raise KilledError(f"the process that called the driver for a {word} was killed") from None
            raise CheckpointError(
                f"the driver does not support {word}: {done.stdout.strip() or done.stderr.strip()}"
            ) from None

    def _environment(self) -> dict[str, str]:
        """Environment of the helper: without preloaded shims and without the variables of an MPS daemon."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_"))}
        if self._simulated is not None:
            environment["PGPU_SIMGPU_DIR"] = str(self._simulated)
        return environment

    def _is_new_enough(self) -> bool:
        try:
            answer, version = _retry(lambda: self._ask("offers"))
        except CheckpointError:
            return False
        return answer == _Answer.SUCCESS and version >= OLDEST_CUDA

    def _has_our_pids(self) -> bool:
        """A real driver uses the PIDs of the initial namespace only."""
        return self._simulated is not None or Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE


def _retry(steps: Callable[[], _Result]) -> _Result:
    """Retry after the helper was killed; completed steps are skipped, since each attempt reads the process's state first."""
    for _ in range(_MOST_KILLED):
        with contextlib.suppress(KilledError):
            return steps()
    return steps()


def _uses_driver(pid: int) -> bool:
    """True if a process has a device of NVIDIA's driver open, or if that cannot be read.

    r580 returns OPERATING_SYSTEM for the state of a process that does not use CUDA, as for a failure of the kernel.
    """
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()).startswith("/dev/nvidia"):
                    return True
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return False


def _failed(word: str, pid: int, answer: int) -> CheckpointError:
    return CheckpointError(f"{word} of process {pid} failed: {_WORDS.get(answer, f'CUDA error {answer}')}")
