"""Default boxes of a detector, and the places where its features look.

Pure. Source: SSD (Liu and others, ECCV 2016), section 2.2: scales from 0.2 to 0.9, aspect ratios 1, 2 and 3.
"""

import math
from collections.abc import Iterator, Sequence

Box = tuple[float, float, float, float]
"""Centre across, centre down, width, height, as parts of the image."""

_LEAST_SCALE, _MOST_SCALE = 0.2, 0.9


def default_boxes(feature_pixels: Sequence[int], boxes_in_a_place: Sequence[int]) -> list[Box]:
    """Return the default boxes, feature by feature, row by row, in the order of the heads' outputs.

    Args:
        feature_pixels: Edge of each feature, finest first.
        boxes_in_a_place: 4 or 6 for each feature.
    """
    scales = _scales(len(feature_pixels))
    return [
        (*centre, *size)
        for number, pixels in enumerate(feature_pixels)
        for centre in _centres(pixels)
        for size in _sizes(scales[number], scales[number + 1], boxes_in_a_place[number])
    ]


def _scales(features: int) -> list[float]:
    step = (_MOST_SCALE - _LEAST_SCALE) / max(1, features - 1)
    return [*(_LEAST_SCALE + step * number for number in range(features)), 1.0]


def _centres(pixels: int) -> Iterator[tuple[float, float]]:
    for down in range(pixels):
        for across in range(pixels):
            yield (across + 0.5) / pixels, (down + 0.5) / pixels


def _sizes(scale: float, next_scale: float, boxes: int) -> Iterator[tuple[float, float]]:
    between = math.sqrt(scale * next_scale)
    yield scale, scale
    yield between, between
    for ratio in (2.0, 3.0)[: (boxes - 2) // 2]:
        longer, shorter = scale * math.sqrt(ratio), scale / math.sqrt(ratio)
        yield longer, shorter
        yield shorter, longer
