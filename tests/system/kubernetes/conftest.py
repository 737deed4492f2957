"""Somebody with functions in a directory, and a cluster that has an API server and no controllers."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fakes.api_objects import KINDS
from tests.fakes.api_server import ApiServer, running
from tests.system.kubernetes.deployed_functions import APP, CLASSES, Said

from pgpu.cli.main import main


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer(kinds=[each for each in KINDS if each.group != "serving.knative.dev"])
    made.objects.create(CLASSES, "", {"metadata": {"name": "gpu.pgpu.io"}, "spec": {}})
    with running(made) as served:
        yield served


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """Where the functions are, and whoever deploys them."""
    place = tmp_path / "source"
    place.mkdir()
    (place / "app.py").write_text(APP)
    with contextlib.chdir(place):
        yield place


@pytest.fixture
def at_server(tmp_path: Path, server: ApiServer) -> Sequence[str]:
    """Return the words that say which cluster is meant, for whoever says nothing else."""
    return ("--kubeconfig", str(server.kubeconfig(tmp_path)))


def _complete(words: Sequence[str], at_server: Sequence[str]) -> list[str]:
    is_incomplete = "kubernetes" in words and "--kubeconfig" not in words
    return [*words, *(at_server if is_incomplete else ())]


@pytest.fixture
def said(source: Path, at_server: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Said:
    assert (source / "app.py").exists()

    def run(*words: str, code: int = 0) -> str:
        assert main(_complete(words, at_server)) == code, capsys.readouterr()
        heard = capsys.readouterr()
        return heard.out if code == 0 else heard.err

    return run


@pytest.fixture
def remarked(source: Path, at_server: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Said:
    assert (source / "app.py").exists()

    def run(*words: str) -> str:
        assert main(_complete(words, at_server)) == 0
        return capsys.readouterr().err

    return run
