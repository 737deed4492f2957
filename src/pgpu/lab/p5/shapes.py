"""Single-shot detectors as lists of layers: the original and two that are cheaper to ask than to load.

Values only. It refuses to know of files, frameworks and weights.

Source: SSD (Liu and others, ECCV 2016); MobileNets (Howard and others, 2017), without batch normalisation, which is folded
into the convolutions when such a network is shipped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CLASSES = 21
"""Pascal VOC's twenty and the background, as in the original."""

_COARSE_PIXELS = 3
"""Features as small as this have four default boxes in each place, as the finest has; the others six."""

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution, and what is done before and after it."""

    outputs: int
    """Channels."""

    kernel: int = 3
    """Edge in pixels."""

    stride: int = 1
    dilation: int = 1
    is_depthwise: bool = False
    """Whether each channel is convolved with itself alone."""

    pool_stride: int = 0
    """Of a maximum pooling before it: 2 halves the image, 1 takes 3 × 3 without halving; 0 for none."""

    is_feature: bool = False
    """Whether boxes are looked for in its output."""

    is_unpadded: bool = False


@dataclass(frozen=True, slots=True)
class Convolution:
    """A layer in its place in a network."""

    name: str
    layer: Layer
    inputs: int
    """Channels."""

    input_pixels: int
    """Edge of the square that it reads."""

    @property
    def output_pixels(self) -> int:
        """Edge of the square that it writes."""
        if self.layer.is_unpadded:
            return (self.input_pixels - self.layer.kernel) // self.layer.stride + 1
        return -(-self.input_pixels // self.layer.stride)

    @property
    def inner(self) -> int:
        """Numbers that are multiplied and summed for each number of the output."""
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
class Shape:
    """A detector."""

    name: str
    purpose: str
    pixels: int
    """Edge of the image that it takes."""

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


def _separable(outputs: int, stride: int = 1, *, is_feature: bool = False) -> tuple[Layer, Layer]:
    """Return MobileNet's pair: each channel alone, then all channels of a pixel."""
    return Layer(0, 3, stride, is_depthwise=True), Layer(outputs, 1, is_feature=is_feature)


def _mobile_trunk(*pairs: tuple[Layer, Layer]) -> tuple[Layer, ...]:
    layers = [Layer(32, 3, 2)]
    for depthwise, pointwise in pairs:
        layers += [Layer(layers[-1].outputs, 3, depthwise.stride, is_depthwise=True), pointwise]
    return tuple(layers)


def _extra(between: int, outputs: int) -> tuple[Layer, Layer]:
    """Return the pair that halves the image behind the trunk."""
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

WIDE = Shape(
    "wide",
    "MobileNet v1's trunk at 192 × 192 and three extra features of 1,024 channels: much to load, little to compute",
    192,
    (*_MOBILENET, *_extra(1024, 1024), *_extra(512, 1024), *_extra(512, 1024)),
)
MOBILENET = Shape(
    "mobilenet",
    "SSD with MobileNet v1 at 300 × 300, as it is commonly shipped",
    300,
    (*_MOBILENET, *_extra(256, 512), *_extra(128, 256), *_extra(128, 256), *_extra(64, 128)),
)
VGG16 = Shape(
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
SMALL = Shape(
    "small",
    "for tests: the same kinds of layers at 64 × 64",
    64,
    (
        *_mobile_trunk(_separable(32, 2), _separable(64, 2, is_feature=True), _separable(64, 2, is_feature=True)),
        *_extra(32, 64),
    ),
)

SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in (WIDE, MOBILENET, VGG16, SMALL)}
