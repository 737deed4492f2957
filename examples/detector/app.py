"""Finds things in images with an SSD network, on a CPU or a GPU. The weights are loaded once, not by each request.

Weights of the right sizes that find nothing in particular: python -m pgpu.lab.p5.network wide ssd.onnx

How to call it: ../README.md
"""

from dataclasses import dataclass

import numpy as np
import onnxruntime


@dataclass
class Box:
    """Something that was found; edges as parts of the image."""

    label: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


class Detector:
    """Runs as it is in a notebook, in pytest and in pgpu."""

    def __init__(self, weights: str = "ssd.onnx") -> None:
        """Load the weights: once for each worker, and the GPU is visible here."""
        self.session = onnxruntime.InferenceSession(weights, providers=onnxruntime.get_available_providers())
        self.shape = tuple(self.session.get_inputs()[0].shape)

    def warmup(self) -> None:
        """Run the network once on a black image, before the first request."""
        self(np.zeros(self.shape[1:], np.uint8))

    def __call__(self, image: np.ndarray, top_k: int = 10) -> list[Box]:
        """Find up to `top_k` things in an image of height × width × 3, uint8; the surest first."""
        if image.shape != self.shape[1:]:
            raise ValueError(f"the image is {image.shape}, not {self.shape[1:]}")
        boxes, scores, found = self.session.run(None, {"image": image.astype(np.uint8).reshape(self.shape)})
        best = sorted(found, key=lambda each: -scores[each[1], each[2]])[:top_k]
        return [Box(int(label), float(scores[label, place]), *map(float, boxes[place])) for _, label, place in best]
