"""An idle holder is reported, and ended where the operator said so; one that works goes on. On the simulated GPU."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.system.conftest import Place

Eventually = Callable[[Callable[[], Any]], Any]

WORKING = [sys.executable, "-m", "pgpu.workloads", "spin", "--kernel-ms", "50", "--launches", "1000000"]


@pytest.fixture
def attentive(place: Place) -> Place:
    place.environment["PGPU_IDLE_TIMEOUT"] = "8s"
    return place


@pytest.mark.soak
def test_an_idle_job_is_reported_and_goes_on(attentive: Place, eventually: Eventually) -> None:
    attentive.detach("notebook", "1GiB", ["sleep", "600"])
    warning = eventually(lambda: attentive.job("notebook")["warning"])
    assert "nothing on its GPUs" in warning
    assert attentive.job("notebook")["state"] == "running"


def test_an_idle_job_is_ended_where_the_operator_said_so_and_one_that_works_goes_on(
    attentive: Place, eventually: Eventually
) -> None:
    attentive.environment["PGPU_ON_IDLE"] = "stop"
    attentive.detach("working", "1GiB", WORKING)
    attentive.detach("notebook", "1GiB", ["sleep", "600"])
    ended = eventually(lambda: (job := attentive.job("notebook"))["state"] == "exited" and job)
    assert "nothing on its GPUs" in ended["warning"]
    assert attentive.job("working")["state"] == "running"
    assert attentive.job("working")["warning"] is None
