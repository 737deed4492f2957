"""Clients that others wrote call a function of `pgpu dev`, unchanged: each is a program in `functions/clients`."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.dev_sessions import dev

CLIENTS = Path(__file__).parent / "functions" / "clients"
CODE = """
from dataclasses import dataclass

import numpy as np

import pgpu


@dataclass
class Order:
    item: str
    count: int = 1


@dataclass
class Taken:
    item: str
    count: int
    type: str | None


def scaler(image: np.ndarray, factor: float = 2.0) -> np.ndarray:
    return image * np.float32(factor)


def take(order: Order, ctx: pgpu.Context) -> Taken:
    return Taken(order.item, order.count, ctx.headers.get("ce-type"))
"""


@pytest.mark.parametrize(("client", "function"), [("triton", "scaler"), ("events", "take"), ("described", "take")])
def test_a_client_of_others_works_unchanged(tmp_path: Path, client: str, function: str) -> None:
    with dev(tmp_path, CODE, app=f"app.py:{function}") as running:
        words = (sys.executable, str(CLIENTS / f"{client}.py"), f"127.0.0.1:{running.port}")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
