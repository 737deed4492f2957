"""A ledger in a state directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.ledger import Ledger


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(ledger_path: Path) -> Iterator[Ledger]:
    made = Ledger(ledger_path)
    yield made
    made.close()
