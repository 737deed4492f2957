"""Somebody with functions in a directory, and a cluster that has an API server and no controllers."""

from collections.abc import Iterator
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
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ApiServer) -> Path:
    place = tmp_path / "source"
    place.mkdir()
    (place / "app.py").write_text(APP)
    monkeypatch.chdir(place)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return place


@pytest.fixture
def said(source: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    assert (source / "app.py").exists()

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code, capsys.readouterr()
        heard = capsys.readouterr()
        return heard.out if code == 0 else heard.err

    return run


@pytest.fixture
def remarked(source: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    assert (source / "app.py").exists()

    def run(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().err

    return run
