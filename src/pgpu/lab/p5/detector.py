"""P5's detector as a user writes it: the callable object, and the structure before it.

Imports nothing of pgpu. ONNX Runtime uses one thread, so that the times of calls are comparable.
"""

import sys
from typing import Any

from pgpu.structs import Struct, to_builtins


class Box(Struct, frozen=True):
    """A detection; edges as fractions of the image."""

    label: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


class Detector:
    """Loads the weights once, and runs one image in each call."""

    def __init__(self, weights: str, *, provider: str = "CPUExecutionProvider") -> None:
        import onnxruntime  # noqa: PLC0415 - what a process for each request imports counts as its time

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(weights, options, providers=[provider])
        self._shape: Any = self._session.get_inputs()[0].shape

    def warmup(self) -> None:
        """Run a grey image, since the first call allocates."""
        height, width, channels = self._shape[1:]
        self(bytes([127]) * (height * width * channels))

    def __call__(self, image: bytes) -> list[Box]:
        """Return detections, the best score first.

        Args:
            image: Rows of red, green and blue, 8 bits each, of the network's input size.
        """
        import numpy as np  # noqa: PLC0415 - as above

        pixels = np.frombuffer(image, np.uint8).reshape(self._shape)
        boxes, scores, found = self._session.run(None, {"image": pixels})
        best = sorted(((float(scores[kind, place]), int(kind), place) for _, kind, place in found), reverse=True)
        return [Box(kind, score, *map(float, boxes[place])) for score, kind, place in best]


class DetectorBefore:
    """The structure before: each call declares the model and loads the weights again; the process stays."""

    def __init__(self, weights: str, *, provider: str = "CPUExecutionProvider") -> None:
        import numpy  # noqa: F401, ICN001, PLC0415 - imported once, as in a process that stays
        import onnxruntime  # noqa: F401, PLC0415 - likewise

        self._weights, self._provider = weights, provider

    def __call__(self, image: bytes) -> list[Box]:
        return Detector(self._weights, provider=self._provider)(image)


def main() -> int:
    """Answer one request in a process of its own: `python detector.py WEIGHTS`, image in, list out."""
    import json  # noqa: PLC0415 - only here

    found = Detector(sys.argv[1])(sys.stdin.buffer.read())
    sys.stdout.write(json.dumps([to_builtins(box) for box in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
