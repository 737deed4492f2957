"""Runs jobs without pgpu: plain processes, or plain `docker run`, that all begin at one moment.

Each program loads first and says that it is ready; then all are told to start, so that they meet on the device however
few cores the machine has. What fails here fails because the device is full; this module refuses to help or hinder it.
"""

import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pgpu.errors import NodeError
from pgpu.lab.device_sampler import sampled
from pgpu.lab.job_outcome import JobOutcome, Trial, last_line, last_result
from pgpu.lab.testbed import Testbed

READY = "ready"
_LOAD_ATTEMPTS = 3


def run_bare(stage: Testbed, jobs: Sequence[tuple[str, tuple[str, ...]]], *, repetition: int = 1) -> Trial:
    """Start all jobs at one moment and wait for all.

    Args:
        stage: Where they run.
        jobs: Name and workload words of each, in order of arrival.
        repetition: Which run of the same experiment this is.

    Raises:
        NodeError: A program did not even load; no job was told to start.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        _load_all(stage, [words for _, words in jobs], processes)
        with sampled(stage.read_used_bytes) as samples:
            began_at_seconds = time.time()
            outcomes = _start_and_wait(processes, [name for name, _ in jobs], began_at_seconds)
    finally:
        for process in processes:
            process.kill()
    return Trial(
        is_with_pgpu=False,
        repetition=repetition,
        jobs=tuple(outcomes),
        device_memory_bytes=stage.device_memory_bytes,
        device_samples=tuple(samples),
    )


def _load(stage: Testbed, words: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        stage.bare_command(words),
        env=stage.bare_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _load_all(stage: Testbed, words: Sequence[tuple[str, ...]], processes: list[subprocess.Popen[str]]) -> None:
    """Fill `processes` with programs that are ready, in order.

    A container engine under load now and then fails to start a container; nothing has touched the GPU by then, so such
    a program is loaded again.
    """
    processes += [_load(stage, each) for each in words]
    for place, each in enumerate(words):
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            said = _first_words(processes[place])
            if said == READY:
                break
            if attempt == _LOAD_ATTEMPTS:
                raise NodeError(f"a workload did not load: {said or 'it said nothing'}", hint="run it alone to see why")
            stage.tell(f"a workload did not load, trying again: {said}")
            processes[place].communicate()
            processes[place] = _load(stage, each)


def _first_words(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None  # noqa: S101 - Popen was told to make the pipe
    return process.stderr.readline().strip()


def _start_and_wait(
    processes: Sequence[subprocess.Popen[str]], names: Sequence[str], began_at_seconds: float
) -> Sequence[JobOutcome]:
    with ThreadPoolExecutor(len(processes)) as waiters:
        waiting = [
            waiters.submit(_finish, process, name, began_at_seconds)
            for process, name in zip(processes, names, strict=True)
        ]
        return [outcome.result() for outcome in waiting]


def _finish(process: subprocess.Popen[str], name: str, began_at_seconds: float) -> JobOutcome:
    standard_output, standard_error = process.communicate("\n")
    return JobOutcome(
        name=name,
        submitted_at_seconds=began_at_seconds,
        ended_at_seconds=time.time(),
        exit_code=process.returncode,
        result=last_result(standard_output),
        complaint=last_line(standard_error),
    )
