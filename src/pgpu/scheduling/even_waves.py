"""Even waves: how many jobs of one batch run at a time on a GPU that cannot take all of them together.

The jobs of a batch are equal requests of one submission. If memory takes 20 of 25 at once, two waves are needed anyway, and 13
and 12 jobs slow each other down less than 20 and 5: the batch ends no later, and its jobs end earlier. So a GPU is filled
beyond its even part of a wave only while its jobs keep it busy for at most half of the time, as measured. A batch that fits
into one wave starts at once, and a GPU without a job of the batch always takes one.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5).
"""

from collections.abc import Sequence

from pgpu.structs import Struct

# Up to this demand of its jobs a GPU takes more than an even wave of them. Covers jobs that need from 1/8 to 1/25 of a GPU.
HALF = 0.5


class Waves(Struct, frozen=True):
    """Waves of one batch on the GPUs of one round."""

    size: int
    """Jobs of the batch, those that have ended included."""

    fitting: int
    """How many of its jobs memory takes at once on all GPUs, those that run included; at least 1."""

    @property
    def count(self) -> int:
        """Fewest waves in which all jobs run."""
        return -(-self.size // self.fitting)

    @property
    def at_once(self) -> int:
        """Jobs of one wave over all GPUs: an even part of the batch, or all that fit if one wave is enough."""
        return -(-self.size // self.count)

    def on_gpu(self, fitting: int) -> int:
        """Return the jobs of one wave on a GPU that takes `fitting` of them; never less than 1."""
        return fitting if self.count == 1 else max(1, -(-self.at_once * fitting // self.fitting))


def may_join(wave: int, running: int, demands: Sequence[float | None]) -> bool:
    """Whether one more job of a batch may start on a GPU where it fits.

    Args:
        wave: Jobs of one wave of the batch on this GPU; at least 1.
        running: Jobs of the batch there.
        demands: Share of the GPU's time that each job there needs, others than the batch's included, 0 to 1; None if it was not
            measured yet. Such a job counts as its part of a GPU that one wave keeps busy.
    """
    return running < wave or sum(1 / wave if demand is None else demand for demand in demands) <= HALF
