"""Measures the memory of one CUDA context on a GPU, in a separate process, through NVML's figure for that process.

The change of free memory across the creation of a context would be wrong whenever another process allocates. There is no
table of sizes: on a simulated GPU, too, the result is what its driver charges.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from pgpu.enforcement import Facts
from pgpu.errors import EnforcementError
from pgpu.host.thread_turns import pause
from pgpu.libraries import PROBE, library_path
from pgpu.model import Gpu, GpuProcess

_DEADLINE_SECONDS = 60.0
"""The first context on a cold machine with many GPUs takes tens of seconds, while the driver initialises them."""

SHARING_MODE = "time-slice"


class ContextSizes:
    """Bytes of a CUDA context for each GPU model, driver and sharing mode; measured once, then cached in the ledger's facts."""

    def __init__(
        self,
        facts: Facts,
        processes: Callable[[str], Sequence[GpuProcess]],
        cuda_library: Callable[[], Path],
        simulated_state_directory: Path | None = None,
    ) -> None:
        """Measure nothing yet.

        Args:
            facts: Store of the results.
            processes: NVML's list of the processes that hold memory of a GPU, by UUID.
            cuda_library: Returns the path of the driver's own library, not of a shim.
            simulated_state_directory: Of the simulated GPUs; None on real ones.
        """
        self._facts = facts
        self._processes = processes
        self._cuda_library = cuda_library
        self._simulated = simulated_state_directory
        self._known_bytes: dict[str, int] = {}
        """Facts that this process has read or measured, by their keys."""

    def __call__(self, gpu: Gpu) -> int:
        """Return the bytes of one context on this GPU.

        Raises:
            EnforcementError: They cannot be measured, so no slice can be charged correctly.
        """
        key = f"context-bytes/{gpu.name}/{gpu.uuid if gpu.is_simulated else gpu.driver_version}/{SHARING_MODE}"
        # Apart from a size that was measured while NVML reported the GPU's memory, without the proof below.
        key += "/host-memory" if gpu.shares_host_memory else ""
        if key not in self._known_bytes:
            fact = self._facts.get(key)
            self._known_bytes[key] = self._measure(gpu) if fact is None else int(fact)
            if fact is None:
                self._facts.put(key, str(self._known_bytes[key]))
        return self._known_bytes[key]

    def _measure(self, gpu: Gpu) -> int:
        # The probe holds its context while NVML is read: the driver lists a process only as long as it has one.
        with self._holding_context(gpu) as pid:
            used = {process.pid: process.used_bytes for process in self._processes(gpu.uuid)}
        if not used.get(pid):
            raise EnforcementError(
                f"the driver does not report what process {pid} holds on {gpu.name}, so a context cannot be measured",
                hint="run pgpu in the machine's own PID namespace, with a driver whose NVML lists processes",
            )
        return int(used[pid] or 0)

    @contextlib.contextmanager
    def _holding_context(self, gpu: Gpu) -> Iterator[int]:
        import subprocess  # noqa: PLC0415 - once for each model of GPUs

        with subprocess.Popen(
            [library_path(PROBE), "hold", self._cuda_library()],
            env=self._environment(gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as probe:
            assert probe.stdout is not None  # noqa: S101 - stdout=PIPE above
            try:
                lines = _read_until_ready(probe.stdout)
                if "ready" not in lines:
                    raise EnforcementError(
                        f"no context can be made on {gpu.name}: the driver answers {' '.join(lines) or 'nothing'}",
                        hint="see whether another program can use this GPU, with `nvidia-smi`",
                    )
                # NVML's silence about memory may have other causes than that there is none, so the driver is asked too.
                if gpu.shares_host_memory and "integrated 1" not in lines:
                    raise EnforcementError(
                        f"NVML does not report the memory of {gpu.name}, though it has some of its own",
                        hint="update the NVIDIA driver",
                    )
                yield probe.pid
            finally:
                # The probe keeps its context until its stdin closes; SIGKILL also ends one that hangs in the driver.
                probe.kill()

    def _environment(self, gpu: Gpu) -> dict[str, str]:
        """This process's environment, with CUDA_MPS_PIPE_DIRECTORY and the like, restricted to one GPU and without preloads."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        environment["CUDA_VISIBLE_DEVICES"] = gpu.uuid
        if self._simulated is not None:
            environment["PGPU_SIMGPU_DIR"] = str(self._simulated)
        return environment


def _read_until_ready(stream: IO[bytes]) -> list[str]:
    """Return the probe's lines up to `ready`, end of file or the deadline."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    poll = select.poll()  # select() fails for descriptors above 1,023
    poll.register(stream, select.POLLIN)
    text = b""
    while b"ready\n" not in text:
        left_seconds = deadline - time.monotonic()
        with pause():
            is_readable = left_seconds > 0 and poll.poll(left_seconds * 1000)
        if not is_readable:
            break
        chunk = os.read(stream.fileno(), 4096)
        if not chunk:
            break
        text += chunk
    return text.decode(errors="replace").splitlines()
