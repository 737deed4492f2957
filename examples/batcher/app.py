"""Multiplies vectors by one large matrix: many at a time cost little more than one, so requests are put together.

A batch starts as soon as the worker is free, with the requests that arrived meanwhile: no request waits for later ones.

How to call it: ../README.md
"""

import numpy as np

import pgpu

SIZE = 512


@pgpu.function(batch=pgpu.Batch(max_size=32))
class Projection:
    """The matrix is read once for a whole batch."""

    def __init__(self, seed: int = 0) -> None:
        self.matrix = np.random.default_rng(seed).standard_normal((SIZE, SIZE), dtype=np.float32) / SIZE**0.5

    def __call__(self, vector: list[np.ndarray]) -> list[np.ndarray]:
        """Get one element for each request, return one result for each, in the same order."""
        return list(np.stack(vector).astype(np.float32) @ self.matrix)
