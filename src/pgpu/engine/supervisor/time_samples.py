"""Samples a running job's board once a second, and writes the samples of the last minute to a file for reports."""

from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.engine.watch.gpu_time import MOST_SAMPLES, Sample, read_samples, write_samples
from pgpu.model import Lease


class TimeSamples:
    """The samples of one job."""

    def __init__(self, enforcer: Enforcer, path: Path) -> None:
        """Read the samples that an earlier agent wrote.

        Args:
            enforcer: Of the job.
            path: The file of samples.
        """
        self._enforcer = enforcer
        self._path = path
        self._samples = read_samples(path)

    @property
    def newest(self) -> Sample | None:
        """The last sample; None if there is none."""
        return self._samples[-1] if self._samples else None

    def look(self, lease: Lease, now_ns: int) -> None:
        """Take a sample; does nothing before a process of the job uses a GPU.

        Raises:
            EnforcementError: The board cannot be read.
        """
        boards, words = self._enforcer.boards(lease), self._enforcer.words(lease)
        if len(boards) != len(lease.slices):
            return
        held = [at < len(words) and words[at].is_held for at in range(len(boards))]
        self._samples = [*self._samples, Sample.of(boards, held, now_ns)][-MOST_SAMPLES:]
        write_samples(self._path, self._samples)
