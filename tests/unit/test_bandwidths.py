"""How fast bytes move on a GPU: what was calibrated, else what the link allows."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pgpu.cli.output.reports import lines_of_bandwidths
from pgpu.engine.history.sharing_advice import keep_bandwidths, swap_bytes_per_second
from pgpu.ledger import Ledger
from pgpu.model import Bandwidths, Gpu
from pgpu.structs import replace

GPU = Gpu(
    "GPU-1", "NVIDIA GeForce GTX 980 Ti", 0, 1 << 30, "615.1", is_simulated=True, link_bytes_per_second=12_000_000_000
)
MEASURED = Bandwidths(to_device=12e9, to_host=6e9, memory=300e9)


def test_where_as_much_goes_out_as_comes_in_the_slower_way_counts_for_more() -> None:
    assert MEASURED.swap == pytest.approx(8e9)


def test_what_was_measured_of_a_gpu_is_kept_for_it_and_its_driver(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    assert swap_bytes_per_second(ledger, GPU) == 12_000_000_000
    keep_bandwidths(ledger, GPU, MEASURED)
    assert swap_bytes_per_second(ledger, GPU) == pytest.approx(8e9)
    assert swap_bytes_per_second(ledger, replace(GPU, driver_version="616")) == 12_000_000_000
    assert swap_bytes_per_second(ledger, replace(GPU, uuid="GPU-2", link_bytes_per_second=None)) is None


def test_a_calibration_says_what_it_measured_beside_what_was_promised() -> None:
    lines: Sequence[str] = lines_of_bandwidths(MEASURED, GPU)
    assert lines[1] == "device to host: 6.0 GB/s; what the link allows: 12.0 GB/s (50% of it)"
    assert lines[2] == "device memory: 300.0 GB/s; the data sheet: 336.5 GB/s (89% of it)"
    assert "GPU-1" in lines[3]
    unknown = lines_of_bandwidths(MEASURED, replace(GPU, name="another", link_bytes_per_second=None))
    assert [line.endswith("is not known") for line in unknown] == [True, True, True, False]
