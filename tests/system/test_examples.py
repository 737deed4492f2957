"""The examples run as plain Python, without pgpu around them."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pgpu
from pgpu.functions.api import attached_declaration, read_project
from pgpu.lab.p5 import network
from pgpu.lab.p5.network import SMALL

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "app.py")
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    weights = network.write(SMALL, tmp_path_factory.mktemp("detector") / "ssd.onnx")
    return module("detector").Detector(str(weights))


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Weights drawn by lot: what shares letters is near, whatever they are."""
    path = tmp_path_factory.mktemp("embedding") / "weights.npz"
    lot = np.random.default_rng(1)
    np.savez(path, table=lot.standard_normal((4096, 64)), layer=lot.standard_normal((64, 64)) / 8)
    return module("embedding").Embedding(str(path))


def test_the_detector_finds_the_surest_first_and_refuses_another_size(detector: Any) -> None:
    image = np.arange(64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)
    detector.warmup()
    boxes = detector(image, top_k=3)
    assert 1 <= len(boxes) <= 3
    assert [box.score for box in boxes] == sorted((box.score for box in boxes), reverse=True)
    assert detector(image, top_k=1) == boxes[:1]
    with pytest.raises(ValueError, match="not \\(64, 64, 3\\)"):
        detector(image[1:])


def test_the_embedding_puts_texts_that_share_words_near_each_other(embedding: Any) -> None:
    one, near, far = embedding(["memory of the graphics card", "the graphics card and its memory", "zebra crossing"])
    assert math.isclose(sum(value * value for value in one), 1)
    assert sum(map(math.prod, zip(one, near, strict=True))) > 0.2 + sum(map(math.prod, zip(one, far, strict=True)))


def test_the_writer_writes_its_words_until_nobody_listens() -> None:
    writer = module("streaming").Writer()
    assert list(writer(5, ctx=pgpu.Context())) == list(writer(5, seed=0, ctx=pgpu.Context()))
    asked: list[bool] = []

    def gone() -> bool:
        asked.append(True)
        return len(asked) > 3

    assert len(list(writer(5, ctx=pgpu.Context(ask_cancelled=gone)))) == 3


def test_the_batcher_gives_each_request_its_own_result() -> None:
    code = module("batcher")
    batcher = code.Projection(seed=1)
    vectors = [np.eye(code.SIZE, dtype=np.float32)[place] for place in (3, 5)]
    assert [result.tolist() for result in batcher(vectors)] == [batcher.matrix[place].tolist() for place in (3, 5)]
    assert attached_declaration(code.Projection).batch == pgpu.Batch(max_size=32)


def test_every_projects_file_names_a_callable_of_its_example() -> None:
    for directory in filter(Path.is_dir, EXAMPLES.iterdir()):
        for name, section in read_project(directory).items():
            assert name == directory.name
            file, _, attribute = str(section.app).partition(":")
            assert (directory / file).exists()
            assert hasattr(module(directory.name), attribute)
