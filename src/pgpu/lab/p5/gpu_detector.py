"""P5's detector on a simulated GPU: the driver API, the real weights' bytes, and a modelled kernel for each layer.

Every layer is launched as a product of matrices (im2col), so it takes the time that the simulated driver models for one. Nothing is
computed there, so there are no detections.
"""

import json
import sys
from array import array
from pathlib import Path
from typing import Any

from pgpu.workloads.cuda_driver import Device
from pgpu.workloads.programs.matrices import TiledProduct

_FLOAT_BYTES = 4
_KERNELS = "matrices.ptx"


class GpuDetector:
    """Makes the context and copies the weights once; launches every layer in each call."""

    def __init__(self, weights: str, layers: str) -> None:
        """Load the weights onto the device.

        Args:
            weights: The ONNX file, whose bytes are copied.
            layers: The file of `network.write_layers`.
        """
        sizes: dict[str, Any] = json.loads(Path(layers).read_text(encoding="utf-8"))
        self._products = [TiledProduct(**each) for each in sizes["layers"]]
        self._device = Device()
        ptx = Path(sys.modules[TiledProduct.__module__].__file__ or "").parent / _KERNELS
        self._module = self._device.load(ptx.read_bytes())
        values = array("B", Path(weights).read_bytes())
        self._weights = self._device.allocate(len(values))
        self._device.write(self._weights, values)
        # Input and output of the largest layer.
        most_bytes = max((each.inner + each.rows) * each.columns * _FLOAT_BYTES for each in self._products)
        self._room = self._device.allocate(max(most_bytes, sizes["pixels"] ** 2 * 3))
        self._last = array("f", bytes(_FLOAT_BYTES * self._products[-1].rows * self._products[-1].columns))

    def __call__(self, image: bytes) -> dict[str, object]:
        """Copy an image to the device, launch every layer, and copy the last output back."""
        self._device.write(self._room, array("B", image))
        weights = self._weights
        for each in self._products:
            each.launch(self._module, (weights, self._room, self._room + each.inner * each.columns * _FLOAT_BYTES))
            weights += each.rows * each.inner * _FLOAT_BYTES
        self._device.synchronize()
        self._device.read(self._room, self._last)
        return {"gpu": self._device.name, "boxes": None}

    def close(self) -> None:
        """Give the device memory back."""
        self._device.free(self._room)
        self._device.free(self._weights)


class GpuDetectorBefore:
    """The structure before: each call allocates and copies again. The context stays, as the process does."""

    def __init__(self, weights: str, layers: str) -> None:
        self._weights, self._layers = weights, layers
        self._device = Device()

    def __call__(self, image: bytes) -> dict[str, object]:
        detector = GpuDetector(self._weights, self._layers)
        try:
            return detector(image)
        finally:
            detector.close()


def main() -> int:
    """Answer one request in a process of its own: `… gpu_detector WEIGHTS LAYERS`, image in, answer out."""
    answer = GpuDetector(sys.argv[1], sys.argv[2])(sys.stdin.buffer.read())
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
