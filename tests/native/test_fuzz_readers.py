"""The monitor's readers of what other processes write, under thousands of mutated inputs, with AddressSanitizer and UBSan."""

import subprocess
from pathlib import Path

from tests.native_clients import client_path

_CORPUS = Path(__file__).parents[2] / "native" / "fuzz" / "corpus"
_MUTATIONS = 30_000


def test_no_input_makes_a_reader_read_or_write_outside_of_its_objects() -> None:
    inputs = sorted(_CORPUS.iterdir())
    readers = client_path("fuzz", "fuzz-readers")
    done = subprocess.run([readers, str(_MUTATIONS), *inputs], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{_MUTATIONS}\n"), done.stderr
