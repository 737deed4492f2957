"""Single-shot detectors as lists of layers, and their default boxes: the original, and two that compute less than they load.

Pure: no files, frameworks or weights.

Source: SSD (Liu and others, ECCV 2016; default boxes: section 2.2); MobileNets (Howard and others, 2017), without batch normalisation, which is folded
into the convolutions when such a network is shipped.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CLASSES = 21
"""Pascal VOC's twenty and the background, as in the original."""

# Features up to this size have four default boxes in each place, like the finest one; the others six.
_COARSE_PIXELS = 3

_FLOAT_BYTES = 4
_LEAST_SCALE, _MOST_SCALE = 0.2, 0.9
PriorBox = tuple[float, float, float, float]
"""Centre across, centre down, width, height, as parts of the image."""


@dataclass(frozen=True, slots=True)
class Layer:
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


@dataclass(frozen=True, slots=True)
class Convolution:
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


@dataclass(frozen=True, slots=True)
class DetectorShape:
    """A detector."""

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

    def everything(self) -> list[Convolution]:
        """Return every convolution, heads last."""
        return [*self.convolutions(), *(head for head, _ in self.heads())]

    @property
    def weights_bytes(self) -> int:
        """Weights and biases of all layers."""
        return sum(each.weights_bytes for each in self.everything())

    @property
    def multiplications(self) -> int:
        """Multiply-adds for one image."""
        return sum(each.multiplications for each in self.everything())


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
