"""`pgpu calibrate` tells before the first run that it may not, and tells no GPU what it measured on another."""

import json
from dataclasses import dataclass

import pytest
from tests.fakes.client import FakeClient, Outcome
from tests.unit.conftest import Run

from pgpu.model import Job
from pgpu.structs import replace

TOLD = {
    "to_device_bytes_per_second": 12e9,
    "to_host_bytes_per_second": 6e9,
    "bytes_per_second": 300e9,
    "compute_seconds": 1.0,
    "iterations": 10,
}


@dataclass
class TwoGpus(FakeClient):
    """A client that places each job on the other GPU."""

    def _granted(self, job: Job) -> Job:
        granted = super()._granted(job)
        assert granted.lease is not None
        [there] = granted.lease.slices
        moved = replace(there, gpu_uuid=f"GPU-{self.ids % 2}")
        return replace(granted, lease=replace(granted.lease, slices=(moved,)))


@pytest.fixture
def client() -> TwoGpus:
    return TwoGpus(outcome=Outcome(stdout=json.dumps(TOLD).encode()))


def test_whoever_may_not_calibrate_is_told_before_anything_runs(
    run: Run, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.may_calibrate = False
    assert run("calibrate") == 125
    assert "a server's" in capsys.readouterr().err
    assert not client.stored


def test_bandwidths_of_two_gpus_are_kept_for_neither(
    run: Run, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("calibrate") != 0
    assert "the workloads ran on several GPUs" in capsys.readouterr().err
    assert len(client.stored) == 2, "the second run shows it"
    assert client.constants is None
