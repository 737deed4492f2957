"""A way to talk with a CUDA program (cuda_program.py) inside a slice."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.contract.runtime_worlds import Streams, pipes
from tests.system.slice_stage import Stage

from pgpu.model import Delivery, Job
from pgpu.runtimes import RunningJob, Runtime

_PROGRAM = Path(__file__).resolve().with_name("cuda_program.py")


@dataclass
class Talker:
    """A running program."""

    job: Job
    delivery: Delivery
    running: RunningJob
    _streams: Streams
    _answers: int = 0

    def ask(self, words: str) -> int:
        """Tell it one thing (`take BYTES`, `free`, `memory`) and return its answer."""
        os.write(self._streams.stdin, words.encode() + b"\n")
        self._answers += 1
        return self._answer(self._answers)

    def _answer(self, number: int) -> int:
        marker = f"answer {number} ".encode()
        text = self._streams.read_until(marker)
        assert marker in text, f"the program ended: {self._streams.read_to_end(self._streams.stderr)!r}"
        rest = text.partition(marker)[2]
        while b";" not in rest:
            rest = self._streams.read_more().partition(marker)[2]
        return int(rest.partition(b";")[0])


@contextlib.contextmanager
def talking(stage: Stage, runtime: Runtime, **options: object) -> Iterator[Talker]:
    """Start a talker in a slice of its own; it is killed and its slice removed at the end."""
    job = stage.job([sys.executable, str(_PROGRAM)], wants_stdin=True, **options)  # type: ignore[arg-type]
    streams = pipes()
    with stage.prepared(job) as delivery:
        try:
            running = runtime.start(job, delivery, streams.job_side, lambda _: None)
        finally:
            streams.close_job_side()
        try:
            talker = Talker(job, delivery, running, streams)
            assert talker.ask("begin") == 0
            yield talker
        finally:
            running.kill()
            running.exit_code()
            running.close()
            streams.close()
