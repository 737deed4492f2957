"""Single-shot detectors: lists of layers with default boxes, and the ONNX file of one with random weights from a seed.

There is the original, and two that compute less than they load. Layers and sizes are real, so a written detector loads and runs
like a trained one.

Source: SSD (Liu and others, ECCV 2016; default boxes: section 2.2); MobileNets (Howard and others, 2017), without batch
normalisation, which is folded into the convolutions when such a network is shipped.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgpu.distribution import require_modules
from pgpu.structs import Struct

# Pascal VOC's twenty and the background, as in the original.
CLASSES = 21

# Features up to this size have four default boxes in each place, like the finest one; the others six.
_COARSE_PIXELS = 3

_FLOAT_BYTES = 4
_LEAST_SCALE, _MOST_SCALE = 0.2, 0.9

# Centre across, centre down, width, height, as parts of the image.
PriorBox = tuple[float, float, float, float]


class Layer(Struct, frozen=True):
    """One convolution, with a pooling before it."""

    outputs: int
    """Channels."""

    kernel: int = 3
    """Edge in pixels."""

    stride: int = 1
    dilation: int = 1
    is_depthwise: bool = False
    """Whether each channel is convolved separately."""

    pool_stride: int = 0
    """Of a maximum pooling before it: 2 halves the image, 1 takes 3 × 3 without halving; 0 for none."""

    is_feature: bool = False
    """Whether its output feeds a detection head."""

    is_unpadded: bool = False


class Convolution(Struct, frozen=True):
    """A layer in its place in a network."""

    name: str
    layer: Layer
    inputs: int
    """Channels."""

    input_pixels: int
    """Edge of its square input."""

    @property
    def output_pixels(self) -> int:
        """Edge of its square output."""
        if self.layer.is_unpadded:
            return (self.input_pixels - self.layer.kernel) // self.layer.stride + 1
        return -(-self.input_pixels // self.layer.stride)

    @property
    def inner(self) -> int:
        """Multiply-adds for each number of the output."""
        return (1 if self.layer.is_depthwise else self.inputs) * self.layer.kernel**2

    @property
    def weights_bytes(self) -> int:
        """Weights and biases, float32."""
        return (self.layer.outputs * self.inner + self.layer.outputs) * _FLOAT_BYTES

    @property
    def multiplications(self) -> int:
        """Multiply-adds for one image."""
        return self.layer.outputs * self.inner * self.output_pixels**2


class DetectorShape(Struct, frozen=True):
    name: str
    purpose: str
    pixels: int
    """Edge of its square input image."""

    layers: tuple[Layer, ...]

    def convolutions(self) -> Iterator[Convolution]:
        """Yield the layers in their places, without the heads."""
        channels, pixels = 3, self.pixels
        for number, layer in enumerate(self.layers):
            pixels = -(-pixels // layer.pool_stride) if layer.pool_stride else pixels
            found = Convolution(f"layer{number}", layer, channels, pixels)
            yield found
            channels, pixels = layer.outputs, found.output_pixels

    def heads(self) -> Iterator[tuple[Convolution, int]]:
        """Yield for each feature its head and how many boxes it has in each place: classes first, then four edges."""
        features = [each for each in self.convolutions() if each.layer.is_feature]
        for number, feature in enumerate(features):
            boxes = 4 if number == 0 or feature.output_pixels <= _COARSE_PIXELS else 6
            layer = Layer(boxes * (CLASSES + 4))
            yield Convolution(f"head{number}", layer, feature.layer.outputs, feature.output_pixels), boxes

    def all_convolutions(self) -> list[Convolution]:
        return [*self.convolutions(), *(head for head, _ in self.heads())]

    @property
    def weights_bytes(self) -> int:
        """Weights and biases of all layers."""
        return sum(each.weights_bytes for each in self.all_convolutions())

    @property
    def multiplications(self) -> int:
        """Multiply-adds for one image."""
        return sum(each.multiplications for each in self.all_convolutions())


def default_boxes(feature_pixels: Sequence[int], boxes_in_a_place: Sequence[int]) -> list[PriorBox]:
    """Return the default boxes, feature by feature, row by row, in the order of the heads' outputs.

    Args:
        feature_pixels: Edge of each feature, finest first.
        boxes_in_a_place: 4 or 6 for each feature.
    """
    features = len(feature_pixels)
    step = (_MOST_SCALE - _LEAST_SCALE) / max(1, features - 1)
    scales = [*(_LEAST_SCALE + step * number for number in range(features)), 1.0]
    return [
        ((across + 0.5) / pixels, (down + 0.5) / pixels, *size)
        for number, pixels in enumerate(feature_pixels)
        for down in range(pixels)
        for across in range(pixels)
        for size in _box_sizes(scales[number], scales[number + 1], boxes_in_a_place[number])
    ]


def _box_sizes(scale: float, next_scale: float, boxes: int) -> Iterator[tuple[float, float]]:
    between = math.sqrt(scale * next_scale)
    yield scale, scale
    yield between, between
    for ratio in (2.0, 3.0)[: (boxes - 2) // 2]:
        longer, shorter = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
        yield longer, shorter
        yield shorter, longer


def _separable(outputs: int, stride: int = 1, *, is_feature: bool = False) -> tuple[Layer, Layer]:
    """Return MobileNet's pair: each channel alone, then all channels of a pixel."""
    return Layer(0, 3, stride, is_depthwise=True), Layer(outputs, 1, is_feature=is_feature)


def _mobile_trunk(*pairs: tuple[Layer, Layer]) -> tuple[Layer, ...]:
    layers = [Layer(32, 3, 2)]
    for depthwise, pointwise in pairs:
        layers += [Layer(layers[-1].outputs, 3, depthwise.stride, is_depthwise=True), pointwise]
    return tuple(layers)


def _extra(between: int, outputs: int) -> tuple[Layer, Layer]:
    """Return the pair that halves the image after the trunk."""
    return Layer(between, 1), Layer(outputs, 3, 2, is_feature=True)


_MOBILENET = _mobile_trunk(
    _separable(64),
    *(_separable(128, 2), _separable(128)),
    *(_separable(256, 2), _separable(256)),
    *(_separable(512, 2), *(_separable(512),) * 4, _separable(512, is_feature=True)),
    *(_separable(1024, 2), _separable(1024, is_feature=True)),
)
_VGG16 = (
    *(Layer(64), Layer(64)),
    *(Layer(128, pool_stride=2), Layer(128)),
    *(Layer(256, pool_stride=2), Layer(256), Layer(256)),
    *(Layer(512, pool_stride=2), Layer(512), Layer(512, is_feature=True)),
    *(Layer(512, pool_stride=2), Layer(512), Layer(512)),
    *(Layer(1024, dilation=6, pool_stride=1), Layer(1024, 1, is_feature=True)),
)

WIDE = DetectorShape(
    "wide",
    "MobileNet v1's trunk at 192 × 192 and three extra features of 1,024 channels: much to load, little to compute",
    192,
    (*_MOBILENET, *_extra(1024, 1024), *_extra(512, 1024), *_extra(512, 1024)),
)
MOBILENET = DetectorShape(
    "mobilenet",
    "SSD with MobileNet v1 at 300 × 300, as it is commonly shipped",
    300,
    (*_MOBILENET, *_extra(256, 512), *_extra(128, 256), *_extra(128, 256), *_extra(64, 128)),
)
VGG16 = DetectorShape(
    "vgg16",
    "SSD300 with VGG-16, the original: much to load, and far more to compute",
    300,
    (
        *_VGG16,
        *_extra(256, 512),
        *_extra(128, 256),
        *(Layer(128, 1), Layer(256, 3, is_unpadded=True, is_feature=True)),
        *(Layer(128, 1), Layer(256, 3, is_unpadded=True, is_feature=True)),
    ),
)
SMALL = DetectorShape(
    "small",
    "for tests: the same kinds of layers at 64 × 64",
    64,
    (
        *_mobile_trunk(_separable(32, 2), _separable(64, 2, is_feature=True), _separable(64, 2, is_feature=True)),
        *_extra(32, 64),
    ),
)

SHAPES: Mapping[str, DetectorShape] = {shape.name: shape for shape in (WIDE, MOBILENET, VGG16, SMALL)}


# The year of P5.
SEED = 2019

_OPSET, _FORMAT = 17, 8
# TensorProto.FLOAT.
_FLOAT = 1

_MIDDLE = 127.5
# Source: SSD's reference code.
_VARIANCES = (0.1, 0.1, 0.2, 0.2)

_MOST_OF_A_CLASS = 20
_OVERLAP = 0.45
_LEAST_SCORE = 0.3


def require_onnx() -> None:
    """Check for ONNX before an experiment begins.

    Raises:
        NodeError: onnx or ONNX Runtime is missing.
    """
    require_modules("the detector of p5 needs", ("onnx", "onnxruntime"), "lab")


def write(shape: DetectorShape, path: Path, *, seed: int = SEED) -> Path:
    """Write a detector; the same shape and seed give the same bytes.

    Its input `image` is uint8, 1 × pixels × pixels × 3. Its outputs are `boxes` (N × 4: left, top, right, bottom, as parts
    of the image), `scores` (classes without the background × N) and `found` (M × 3: image, class, box), which overlap
    little and score 0.3 or more.

    Args:
        shape: Its layers.
        path: Of the ONNX file.
        seed: Of the weights.
    """
    import onnx  # noqa: PLC0415 - an extra that may be missing

    onnx.save(_Writer(seed).model(shape), path)
    return path


def write_layers(shape: DetectorShape, path: Path) -> Path:
    """Write the sizes of each layer as a product of matrices, for a program without a framework."""
    layers = [
        {"rows": each.layer.outputs, "inner": each.inner, "columns": each.output_pixels**2}
        for each in shape.all_convolutions()
    ]
    path.write_text(json.dumps({"pixels": shape.pixels, "layers": layers}), encoding="utf-8")
    return path


class _Writer:
    """Nodes and weights of one network; weights are drawn from the seed in the order of the nodes."""

    def __init__(self, seed: int) -> None:
        import numpy  # noqa: ICN001, PLC0415 - an extra that may be missing

        self._numpy = numpy
        self._generator = numpy.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def model(self, shape: DetectorShape) -> Any:
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra that may be missing

        # Planes of floats from -1 to 1.
        self._node("Cast", ["image"], "image_float", to=_FLOAT)
        self._node("Sub", ["image_float", self._numbers("middle", _MIDDLE)], "image_centred")
        self._node("Div", ["image_centred", self._numbers("range", _MIDDLE)], "image_scaled")
        self._node("Transpose", ["image_scaled"], "image_planes", perm=[0, 3, 1, 2])
        features = self._trunk(shape)
        self._add_outputs(shape, [self._convolve(head, features[i]) for i, (head, _) in enumerate(shape.heads())])
        image = helper.make_tensor_value_info("image", TensorProto.UINT8, [1, shape.pixels, shape.pixels, 3])
        outputs = [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [None, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [CLASSES - 1, None]),
            helper.make_tensor_value_info("found", TensorProto.INT64, [None, 3]),
        ]
        graph = helper.make_graph(self._nodes, shape.name, [image], outputs, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_FORMAT)

    def _trunk(self, shape: DetectorShape) -> list[str]:
        features, value = [], "image_planes"
        for each in shape.convolutions():
            value = self._node("Relu", [self._convolve(each, value)], f"{each.name}_out")
            if each.layer.is_feature:
                features.append(value)
        return features

    def _convolve(self, each: Convolution, value: str) -> str:
        layer = each.layer
        if layer.pool_stride:
            edge = 3 if layer.pool_stride == 1 else layer.pool_stride
            strides, kernel_edges = [layer.pool_stride] * 2, [edge] * 2
            name = f"{each.name}_pooled"
            value = self._node(
                "MaxPool", [value], name, kernel_shape=kernel_edges, strides=strides, auto_pad="SAME_UPPER"
            )
        groups = each.inputs if layer.is_depthwise else 1
        spread = math.sqrt(2 / each.inner)
        kernel = (layer.outputs, each.inputs // groups, layer.kernel, layer.kernel)
        weights = self._constant(f"{each.name}_weights", self._draw(kernel) * self._numpy.float32(spread))
        biases = self._constant(f"{each.name}_biases", self._draw((layer.outputs,)) * self._numpy.float32(0.01))
        # Zeros that keep the image's size; of an odd number the larger half is below and right.
        reach = (each.output_pixels - 1) * layer.stride + layer.dilation * (layer.kernel - 1) + 1
        missing = max(0, reach - each.input_pixels)
        return self._node(
            "Conv",
            [value, weights, biases],
            f"{each.name}_sums",
            kernel_shape=[layer.kernel] * 2,
            strides=[layer.stride] * 2,
            dilations=[layer.dilation] * 2,
            pads=[missing // 2] * 2 + [missing - missing // 2] * 2,
            group=groups,
        )

    def _add_outputs(self, shape: DetectorShape, heads: list[str]) -> None:
        """Convert the heads' outputs to boxes, scores and detections."""
        rows = []
        for head in heads:  # Each output becomes a row for each default box.
            planes_last = self._node("Transpose", [head], f"{head}_last", perm=[0, 2, 3, 1])
            sizes = self._constant(f"{head}_shape", self._numpy.array([1, -1, CLASSES + 4], self._numpy.int64))
            rows.append(self._node("Reshape", [planes_last, sizes], f"{head}_rows"))
        self._node("Concat", rows, "all_rows", axis=1)
        sizes = self._constant("class_and_edges", self._numpy.array([CLASSES, 4], self._numpy.int64))
        self._nodes.append(self._make_node("Split", ["all_rows", sizes], ["logits", "edges"], axis=2))
        self._node("Softmax", ["logits"], "likely", axis=2)
        self._node("Transpose", ["likely"], "likely_by_class", perm=[0, 2, 1])
        self._node("Slice", ["likely_by_class", *self._span("without_background", 1, CLASSES, 1)], "scored")
        self._decode(shape)
        most = self._constant("most", self._numpy.array([_MOST_OF_A_CLASS], self._numpy.int64))
        limits = [self._numbers("overlap", _OVERLAP), self._numbers("least_score", _LEAST_SCORE)]
        self._node("NonMaxSuppression", ["corners", "scored", most, *limits], "found")
        first = self._constant("first", self._numpy.array([0], self._numpy.int64))
        self._node("Squeeze", ["corners", first], "boxes")
        self._node("Squeeze", ["scored", first], "scores")

    def _decode(self, shape: DetectorShape) -> None:
        """Shift and scale the default boxes by the predicted offsets, and convert them to corners."""
        heads = list(shape.heads())
        boxes = default_boxes([head.output_pixels for head, _ in heads], [count for _, count in heads])
        priors = self._numpy.array([boxes], self._numpy.float32)
        variances = self._numpy.array(_VARIANCES, self._numpy.float32)
        self._node("Mul", ["edges", self._constant("variances", variances)], "offsets")
        for name, first, last in (("moves", 0, 2), ("stretches", 2, 4)):
            self._node("Slice", ["offsets", *self._span(name, first, last, 2)], name)
        centres, sizes = self._constant("centres", priors[..., :2]), self._constant("sizes", priors[..., 2:])
        self._node("Mul", ["moves", sizes], "moved")
        self._node("Add", ["moved", centres], "middles")
        self._node("Exp", ["stretches"], "stretched")
        self._node("Mul", ["stretched", self._constant("half_sizes", priors[..., 2:] / 2)], "halves")
        self._node("Sub", ["middles", "halves"], "upper_left")
        self._node("Add", ["middles", "halves"], "lower_right")
        self._node("Concat", ["upper_left", "lower_right"], "corners", axis=2)

    def _span(self, name: str, first: int, last: int, axis: int) -> list[str]:
        numbers = (("from", first), ("to", last), ("axis", axis))
        return [self._constant(f"{name}_{word}", self._numpy.array([n], self._numpy.int64)) for word, n in numbers]

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self._generator.standard_normal(shape, self._numpy.float32)

    def _numbers(self, name: str, *values: float) -> str:
        return self._constant(name, self._numpy.array(values, self._numpy.float32))

    def _constant(self, name: str, values: Any) -> str:
        from onnx import numpy_helper  # noqa: PLC0415 - an extra that may be missing

        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(self._make_node(kind, inputs, [output], **attributes))
        return output

    def _make_node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
        from onnx import helper  # noqa: PLC0415 - an extra that may be missing

        return helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes)


def main() -> int:
    """Write one detector: `python -m pgpu.lab.p5.network NAME FILE`."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.lab.p5.network", description=main.__doc__)
    parser.add_argument("name", choices=SHAPES, help="which detector")
    parser.add_argument("file", type=Path, help="where the ONNX file goes")
    words = parser.parse_args()
    require_onnx()
    write(SHAPES[words.name], words.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
