"""P5's detectors have the sizes of the published ones, and its report compares what may be compared."""

import pytest

from pgpu.cli.verbs.lab import _read_networks
from pgpu.errors import RequestError
from pgpu.lab.p5.experiment import Measured, comparison_rows, findings
from pgpu.lab.p5.network import MOBILENET, SHAPES, SMALL, VGG16, DetectorShape, default_boxes

SCALES_OF_ITS_NORMALISATION = 512


def boxes_of(shape: DetectorShape) -> list[tuple[float, float, float, float]]:
    heads = list(shape.heads())
    return default_boxes([head.output_pixels for head, _ in heads], [count for _, count in heads])


def test_the_original_has_the_published_weights_boxes_and_features() -> None:
    assert [head.input_pixels for head, _ in VGG16.heads()] == [38, 19, 10, 5, 3, 1]
    assert len(boxes_of(VGG16)) == 8732
    assert VGG16.weights_bytes == 4 * (26_285_486 - SCALES_OF_ITS_NORMALISATION)


def test_mobilenets_trunk_has_the_published_cost() -> None:
    trunk = list(MOBILENET.convolutions())[:27]
    at_224 = sum(each.multiplications for each in trunk) * (224 / 300) ** 2
    assert at_224 == pytest.approx(568e6, rel=0.04)  # MobileNets, table 4: 569 M with its classifier of 1 M


@pytest.mark.parametrize("shape", SHAPES.values(), ids=str)
def test_every_place_of_every_feature_has_its_default_boxes_in_the_image(shape: DetectorShape) -> None:
    boxes = boxes_of(shape)
    assert len(boxes) == sum(head.output_pixels**2 * count for head, count in shape.heads())
    assert all(0 < across < 1 and 0 < down < 1 and width > 0 < height for across, down, width, height in boxes)


def asked(kind: str, structure: str, *seconds: float) -> Measured:
    return Measured(kind, SMALL, structure, seconds, sum(seconds), None)


def test_only_the_cpu_function_is_given_a_ratio() -> None:
    before, after = asked("cpu", "load in each call", 0.8, 0.8), asked("cpu", "callable object", 0.1, 0.1)
    rows = list(comparison_rows([before, after], is_compared=True))
    assert [row[-1] for row in rows] == [1.0, 8.0]
    assert [row[3:5] for row in rows] == [(1.87, 1.062), (0.26, 0.012)]
    assert "is 8.0 times faster" in next(findings([before, after], []))
    simulated = [asked("gpu", "load in each call", 0.8, 0.8), asked("gpu", "callable object", 0.1, 0.1)]
    assert [row[-1] for row in comparison_rows(simulated, is_compared=False)] == [None, None]
    assert "times as soon" not in list(findings([], simulated))[-1]


def test_a_row_has_the_start_up_and_the_whole_time_of_its_structure() -> None:
    served = Measured("cpu", SMALL, "load in each call", (0.8, 0.8), 3.456, 1.234)
    rows = list(comparison_rows([served, asked("cpu", "process for each request", 0.9, 0.9)], is_compared=True))

    assert [row[-3:-1] for row in rows] == [(1.23, 3.46), (None, 1.8)]


def test_names_of_detectors_are_read_or_refused() -> None:
    known = tuple(SHAPES)
    assert _read_networks("vgg16,wide,vgg16", known) == ("vgg16", "wide")
    with pytest.raises(RequestError, match="'' is no detector"):
        _read_networks("wide,", known)
