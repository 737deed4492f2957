"""Turns texts into vectors that lie near each other where the texts share words. The weights come by path.

`weights` is a NumPy archive: `table` (rows × size; a row for each hash of three letters) and `layer` (size × size).

How to call it: ../README.md
"""

import zlib

import numpy as np


class Embedding:
    """One file of weights, loaded once."""

    def __init__(self, weights: str = "weights.npz") -> None:
        with np.load(weights) as file:
            self.table, self.layer = file["table"], file["layer"]

    def __call__(self, texts: list[str]) -> list[list[float]]:
        """Return a vector of length 1 for each text."""
        return [self.embed(text).tolist() for text in texts]

    def embed(self, text: str) -> np.ndarray:
        """Mean of the rows of its letters, three at a time, through one layer."""
        padded = f"  {text.lower()} "
        hashes = [zlib.crc32(padded[i : i + 3].encode()) % len(self.table) for i in range(len(padded) - 2)]
        vector = np.tanh(self.table[hashes].mean(axis=0) @ self.layer)
        return vector / np.linalg.norm(vector)
