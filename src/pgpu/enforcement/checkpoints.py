"""Moves what a process holds of its GPUs to the host and back, where the driver can do that: NVIDIA's from r570 on.

Each step is asked for by a program of its own (`pgpu-checkpoint`), since a driver that hangs or crashes must take no
supervisor along; it works with NVIDIA's library as with the simulated one. It refuses to say whose turn it is to go.
"""

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from pgpu.errors import EnforcementError, NodeError
from pgpu.libraries import CHECKPOINT, library_path

OLDEST_CUDA = 12080
"""The first CUDA that has these calls: 12.8, of r570."""

_STEP_SECONDS = 300.0
"""A driver that takes longer for one step hangs: 80 GiB over a slow link take a minute."""

_MOST_KILLED = 5
"""So often whoever asks is replaced; a driver that crashes each time would be asked for ever."""

_FIRST_PID_NAMESPACE = 4026531836
"""Inode of the machine's own. Source: PROC_PID_INIT_INO in linux/proc_ns.h."""


_PAUSE_SECONDS = 0.05
"""Between looks at a step under way."""

_Answered = TypeVar("_Answered")


class ProcessState(IntEnum):
    """As CUprocessState counts."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


_UNDER_WAY = {ProcessState.CHECKPOINTING, ProcessState.RESTORING}


class _Answer(IntEnum):
    """Of CUresult what decides what is done next."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
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
"""What the driver answers of a process that is no process any more, or does not use CUDA."""


class CheckpointError(EnforcementError):
    """A step failed, and would fail again."""


class KilledError(CheckpointError):
    """Whoever asked the driver was killed: how far it came, the driver knows."""


class StillWorkingError(CheckpointError):
    """Work that was in flight has not ended in the time given for it; the process goes on."""


class NoRoomError(CheckpointError):
    """What the process had does not fit onto its GPU now; it stays on the host."""


class Checkpoints:
    """The checkpoints of one driver."""

    def __init__(
        self,
        cuda_library: Callable[[], Path],
        simulated_state_directory: Path | None = None,
        helper: Callable[[], Path] = lambda: library_path(CHECKPOINT),
    ) -> None:
        """Ask nothing yet.

        Args:
            cuda_library: Says where the driver itself is, without any shim.
            simulated_state_directory: Of the simulated GPUs; None on real ones.
            helper: Says where the program is that asks.
        """
        self._helper = helper
        self._cuda_library = cuda_library
        self._simulated = simulated_state_directory
        self._are_offered: bool | None = None

    def are_offered(self) -> bool:
        """Whether this driver has them and knows processes by the PIDs that we know them by; asked once."""
        if self._are_offered is None:
            self._are_offered = self._has_our_pids() and self._is_new_enough()
        return self._are_offered

    def state(self, pid: int) -> ProcessState | None:
        """Return how a process stands; None where it is gone or does not use CUDA.

        Raises:
            CheckpointError: The driver does not tell.
        """
        answer, value = self._ask("state", pid)
        if answer in _GONE:
            return None
        if answer != _Answer.SUCCESS or value not in list(ProcessState):
            raise _failed("state", pid, answer)
        return ProcessState(value)

    def is_away(self, pid: int) -> bool:
        """Whether what a process had is on the host.

        Raises:
            CheckpointError: The driver does not tell.
        """
        return self.state(pid) is ProcessState.CHECKPOINTED

    def leave(self, pid: int, patience_seconds: float) -> None:
        """Bring all that a process holds to the host and have its calls wait; does nothing where that is so, or it is gone.

        Args:
            pid: The host's.
            patience_seconds: How long its work may take to end; above 0.

        Raises:
            StillWorkingError: It took longer; the process goes on.
            CheckpointError: It cannot be moved; it may be locked.
        """
        _again(lambda: self._leave(pid, patience_seconds))

    def _leave(self, pid: int, patience_seconds: float) -> None:
        state = self._state_at_rest(pid)
        if state is ProcessState.RUNNING:
            self._step("lock", pid, max(1, round(patience_seconds * 1000)))
            state = ProcessState.LOCKED
        if state is ProcessState.LOCKED:
            self._step("checkpoint", pid)
        elif state not in {None, ProcessState.CHECKPOINTED}:
            raise CheckpointError(f"process {pid} cannot leave its GPU: its driver calls it {state.name.lower()}")

    def come_back(self, pid: int) -> None:
        """Bring everything back and let the process go on; does nothing where that is so, or it is gone.

        Raises:
            NoRoomError: It does not fit onto the GPU now.
            CheckpointError: The driver failed.
        """
        _again(lambda: self._come_back(pid))

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
        """Wait for the end of a step whose asker was killed: the driver goes on with it."""
        until_seconds = time.monotonic() + _STEP_SECONDS
        while (state := self.state(pid)) in _UNDER_WAY and time.monotonic() < until_seconds:
            threading.Event().wait(_PAUSE_SECONDS)
        return state

    def _step(self, word: str, pid: int, *more: int) -> None:
        answer, _ = self._ask(word, pid, *more)
        if answer == _Answer.SUCCESS or (answer in _GONE and self.state(pid) is None):
            return
        if answer == _Answer.NOT_READY:
            raise StillWorkingError(f"work of process {pid} has not ended in time")
        if answer == _Answer.OUT_OF_MEMORY and word == "restore":
            raise NoRoomError(f"process {pid} cannot come back: {_WORDS[answer]}")
        raise _failed(word, pid, answer)

    def _ask(self, word: str, *more: int) -> tuple[int, int]:
        """Return the driver's answer, and its value or -1."""
        try:
            command = [str(self._helper()), str(self._cuda_library()), word, *map(str, more)]
            told = subprocess.run(
                command, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=_STEP_SECONDS, check=False,
            )  # fmt: skip
            numbers = [int(number) for number in told.stdout.split()]
            return numbers[0], numbers[1] if len(numbers) > 1 else -1
        except (OSError, subprocess.TimeoutExpired, NodeError) as exc:
            raise CheckpointError(f"the driver could not be asked for a {word}: {exc}") from exc
        except (ValueError, IndexError):
            if told.returncode < 0:
                raise KilledError(f"whoever asked the driver for a {word} was killed") from None
            raise CheckpointError(f"the driver knows no {word}: {told.stdout.strip() or told.stderr.strip()}") from None

    def _environment(self) -> dict[str, str]:
        """Neither a shim nor a daemon of MPS of ours has a part in it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_"))}
        if self._simulated is not None:
            environment["PGPU_SIMGPU_DIR"] = str(self._simulated)
        return environment

    def _is_new_enough(self) -> bool:
        try:
            answer, version = _again(lambda: self._ask("offers"))
        except CheckpointError:
            return False
        return answer == _Answer.SUCCESS and version >= OLDEST_CUDA

    def _has_our_pids(self) -> bool:
        """A real driver knows the PIDs of the machine's own namespace alone."""
        return self._simulated is not None or Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE


def _again(steps: Callable[[], _Answered]) -> _Answered:
    """Begin anew where whoever asks is killed: each step that was taken is seen by the state."""
    for _ in range(_MOST_KILLED):
        with contextlib.suppress(KilledError):
            return steps()
    return steps()


def _failed(word: str, pid: int, answer: int) -> CheckpointError:
    return CheckpointError(f"{word} of process {pid} failed: {_WORDS.get(answer, f'CUDA error {answer}')}")
