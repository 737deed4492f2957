"""Wishes of a running job for larger slices, and the host's answers: words of its usage file and of its limit file.

Layout and protocol are in native/include/meter_abi.h. A wish is a request and nothing more: the job may write any. The words of both
files are the whole state, so an agent that takes over a job finds the wishes that are open.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from pgpu.enforcement import limit_file, meter
from pgpu.scheduling.slice_growth import Verdict
from pgpu.structs import Struct

SEQUENCE_SHIFT = 40
SEQUENCE_MASK = (1 << 24) - 1
PAGE_BYTES = 4096
PAGES_MASK = (1 << 40) - 1
VERDICTS = {Verdict.GRANT: 1, Verdict.WAIT: 2, Verdict.REFUSE: 3}

_VERDICT_MASK = 0xFF
_BEAT_SHIFT = 8
_BEAT_MASK = (1 << 32) - 1
_FINAL = {VERDICTS[Verdict.GRANT], VERDICTS[Verdict.REFUSE]}


class Wish(Struct, frozen=True):
    """An open wish for one slice."""

    gpu_uuid: str
    sequence: int
    need_bytes: int
    """Of the whole slice, overhead included."""


class GrowthChannel(Struct, frozen=True):
    """The two files of one slice that grows."""

    limit: Path
    usage: Path
    """Written by the job after each wish, by a system call that inotify reports."""

    def wishes(self) -> Sequence[Wish]:
        """Return the wishes without a final answer; at most one for each GPU.

        Raises:
            EnforcementError: A file cannot be read, or is corrupt.
        """
        limit = limit_file.read_limit(self.limit)
        words = meter.read_growth_words(self.usage)
        found = []
        for gpu, word in zip(limit.gpus, words, strict=False):
            sequence, pages = word >> SEQUENCE_SHIFT, word & PAGES_MASK
            if pages and not (gpu.growth_answer & _VERDICT_MASK in _FINAL and _covers(gpu.growth_answer, sequence)):
                found.append(Wish(gpu.uuid, sequence, pages * PAGE_BYTES + gpu.overhead_bytes))
        return found

    def answer(self, wishes: Sequence[Wish], verdict: Verdict) -> None:
        """Answer wishes; the slice must be larger already if they are granted.

        Raises:
            EnforcementError: The limit file cannot be written.
        """
        # A wait is confirmed by another word each second, from any agent: the shim gives up after a silence.
        beat = int(time.monotonic()) & _BEAT_MASK
        for wish in wishes:
            word = wish.sequence << SEQUENCE_SHIFT | beat << _BEAT_SHIFT | VERDICTS[verdict]
            limit_file.set_growth_answer(self.limit, wish.gpu_uuid, word)


def _covers(answer: int, sequence: int) -> bool:
    # Sequence numbers wrap around: the answer is for this wish or a later one.
    return ((answer >> SEQUENCE_SHIFT) - sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2
