"""How fast bytes move on one machine's GPU, as `pgpu calibrate` measured it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Of one GPU under one driver, in bytes a second."""

    to_device: float
    """From pinned host memory."""

    to_host: float
    """Into pinned host memory."""

    memory: float
    """Of the GPU's own memory, read in a stream by all multiprocessors."""

    @property
    def swap(self) -> float:
        """At which memory moves where as much comes in as goes out, one after the other."""
        return 2 / (1 / self.to_device + 1 / self.to_host)
