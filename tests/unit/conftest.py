"""The command line over a client that runs nothing, for the tests of its verbs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.fakes.client import FakeClient

from pgpu.cli.invocation import Invocation
from pgpu.cli.main import main
from pgpu.client import Client
from pgpu.errors import RequestError

Run = Callable[..., int]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def run(client: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    for name in ("PGPU_SIMULATE", "PGPU_STATE_DIR", "PGPU_WAIT_TIMEOUT", "PGPU_STOP_GRACE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # of the notices that are printed once

    def answer(_settings: Any) -> Client:
        return client

    def refuse(_settings: Any) -> NoReturn:
        raise RequestError("no server")

    return lambda *words: main(words, Invocation(make_client=answer, make_functions=refuse))
