"""The compiled copy of pgpu's placer, which plays long streams, decides as the placer does."""

import os
import random
import subprocess
import sys

import numpy as np
from benchmarks.placement.openb import ANY_MODEL, Stream, Trace
from tests.native_clients import framework_python

PODS = 700
KINDS = [(0, 1, 330), (1, 1, 500), (2, 1, 810), (3, 1, 1000), (4, 2, 1000), (6, 0, 0), (1, 1, 100), (5, 4, 1000)]
MODELS = [ANY_MODEL, 0b001, ANY_MODEL, 0b101, ANY_MODEL, ANY_MODEL, 0b011, ANY_MODEL]
"""Of each kind, by bits."""


def trace() -> Trace:
    nodes = [(16_000, 64_000, 2, 0), (32_000, 128_000, 4, 1), (96_000, 256_000, 8, 2)] * 4
    cpu_milli, memory_mib, gpus, model = np.array(nodes, dtype=np.int64).T
    kinds = [
        (1500 * cpu + 1000, 3000 * cpu + 500, count, milli, models)
        for (cpu, count, milli), models in zip(KINDS, MODELS, strict=True)
    ]
    return Trace(cpu_milli, memory_mib, gpus, model, np.array(kinds, dtype=np.int64), list(range(len(kinds))))


def stream(seed: int) -> Stream:
    dice = random.Random(seed)
    events: list[int] = []
    staying: list[int] = []
    for pod in range(PODS):
        events.append(pod)
        staying.append(pod)
        if len(staying) > 60:
            events.append(-1 - staying.pop(dice.randrange(len(staying))))
    kinds = np.array(dice.choices(range(len(KINDS)), (5, 5, 9, 9, 2, 3, 4, 1), k=PODS), dtype=np.int64)
    return Stream(kinds, np.array(events, dtype=np.int64), 100, PODS)


def test_the_compiled_copy_places_every_pod_where_the_placer_does() -> None:
    """Uncompiled, since compiling takes longer than the streams; in the environment that has numba."""
    done = subprocess.run(
        [framework_python("numba"), __file__],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = [line.split() for line in done.stdout.splitlines()]
    assert len(counts) == 2
    for pods, refused, differently in counts:
        assert int(pods) == PODS
        assert 0 < int(refused) < PODS / 2
        assert int(differently) == 0


if __name__ == "__main__":
    from benchmarks.placement.same import compared

    for seed in (1, 2):
        print(*compared(trace().shuffled(seed), stream(seed)).values())  # noqa: T201 - to the test above
