"""P5's detector is written the same every time and runs; the experiment asks it through front and worker."""

import json
from pathlib import Path

import pytest

from pgpu.lab.p5 import network
from pgpu.lab.p5.detector import Detector, DetectorBefore
from pgpu.lab.p5.network import CLASSES, SMALL

IMAGE = bytes(range(256)) * 48


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network.write(SMALL, tmp_path_factory.mktemp("p5") / "small.onnx")


def test_a_seed_makes_the_same_detector_every_time(weights: Path, tmp_path: Path) -> None:
    assert network.write(SMALL, tmp_path / "again.onnx").read_bytes() == weights.read_bytes()
    assert network.write(SMALL, tmp_path / "other.onnx", seed=1).read_bytes() != weights.read_bytes()
    assert SMALL.weights_bytes < weights.stat().st_size < 1.1 * SMALL.weights_bytes


def test_both_structures_find_the_same(weights: Path) -> None:
    detector = Detector(str(weights))
    detector.warmup()
    found = detector(IMAGE)

    assert found, "the weights that the seed draws find something"
    assert found == DetectorBefore(str(weights))(IMAGE) != detector(IMAGE[::-1])
    assert [box.score for box in found] == sorted((box.score for box in found), reverse=True)
    assert all(0.3 <= box.score <= 1 and 0 <= box.label < CLASSES - 1 for box in found)
    assert all(box.left < box.right and box.top < box.bottom for box in found)


def test_layers_are_written_as_products_of_matrices(tmp_path: Path) -> None:
    written = json.loads(network.write_layers(SMALL, tmp_path / "layers.json").read_text("utf-8"))

    work = sum(layer["rows"] * layer["inner"] * layer["columns"] for layer in written["layers"])
    assert work == SMALL.multiplications
