"""A small cluster of five models whose pods name them as openb's do, for machines without the data: a third of those with GPUs.

As there, the second most frequent model is named for more GPUs than there are, and the rare ones are named in groups.
"""

import random

import numpy as np
from benchmarks.placement.openb import ANY_MODEL, Trace

MIX = "synthetic"
PODS = 1000

# CPU (milli), memory (MiB), GPUs, model; and how many.
_NODES = (
    ((96_000, 393_216, 8, 0), 60),
    ((104_000, 524_288, 2, 1), 45),
    ((128_000, 786_432, 8, 2), 4),
    ((64_000, 262_144, 2, 3), 15),
    ((48_000, 262_144, 4, 4), 10),
)

# CPU (milli), memory (MiB), GPUs, milli; and how often.
_ASKED = (
    ((12_000, 16_384, 1, 1000), 30),
    ((6_000, 12_288, 1, 1000), 22),
    ((8_000, 30_517, 1, 810), 15),
    ((6_000, 12_288, 1, 460), 11),
    ((4_000, 8_192, 1, 330), 5),
    ((11_400, 49_152, 1, 650), 3),
    ((48_000, 131_072, 8, 1000), 1),
    ((16_000, 32_768, 0, 0), 13),
)

# Accepted models, one bit each; and how often.
_ACCEPTED = ((ANY_MODEL, 67), (0b00010, 18), (0b00001, 4), (0b01000, 5), (0b10000, 3), (0b11000, 2), (0b00100, 1))


def typed_trace(seed: int) -> Trace:
    """Draw the pods."""
    dice = random.Random(seed)
    nodes = [node for node, count in _NODES for _ in range(count)]
    asked = dice.choices([kind for kind, _ in _ASKED], [often for _, often in _ASKED], k=PODS)
    accepted = dice.choices([models for models, _ in _ACCEPTED], [often for _, often in _ACCEPTED], k=PODS)
    pods = [(*kind, models if kind[2] == 1 else ANY_MODEL) for kind, models in zip(asked, accepted, strict=True)]
    kinds = sorted(set(pods))
    cpu_milli, memory_mib, gpus, model = np.array(nodes, dtype=np.int64).T
    return Trace(cpu_milli, memory_mib, gpus, model, np.array(kinds, dtype=np.int64), list(map(kinds.index, pods)))
