"""What the ledger remembers of measured runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.ledger import Ledger
from pgpu.ledger.history import KEPT_PROFILES
from pgpu.model import (
    Antagonist,
    Contest,
    CopyUse,
    Demand,
    Evidence,
    KernelUse,
    Profile,
    Resource,
    Sensitivity,
)
from pgpu.structs import replace

PROFILE = Profile(
    signature="train.py@0a1b2c3d --epochs 5",
    gpu_name="simulated RTX 3090",
    owner_uid=1000,
    measured_at_seconds=1_000.0,
    duration_seconds=12.5,
    peak_bytes=1 << 30,
    context_bytes=1 << 28,
    busy_fraction=0.75,
    demands=(Demand(Resource.SM, 0.5, Evidence.LAUNCHES),),
    gpu_l2_bytes=6 << 20,
    sensitivity=Sensitivity(cache=0.25, dram=0.5),
    contests=(Contest(Antagonist.L2, 1 << 20, 0.1, 1.25, 1.5),),
    kernels=(KernelUse("dense", (4, 1, 1), (256, 1, 1), 10, 1000, 90, 110),),
    copies=(CopyUse("HtoD", 2, 4096, 500),),
    is_simulated=True,
)
CALL = (PROFILE.signature, PROFILE.gpu_name, PROFILE.owner_uid)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(tmp_path / "ledger.db")
    yield found
    found.close()


def remember(ledger: Ledger, *profiles: Profile) -> None:
    with ledger.decision() as decision:
        for number, profile in enumerate(profiles):
            decision.profiles.add(profile, f"{number:012x}")


def test_a_profile_comes_back_as_it_was_written_to_another_process(ledger: Ledger) -> None:
    remember(ledger, PROFILE)
    with Ledger(ledger.path).view() as view:
        assert view.profiles.newest(*CALL) == PROFILE
        assert view.profiles.of_job("0" * 12) == PROFILE


def test_the_newest_profile_of_a_call_counts_and_nobody_elses(ledger: Ledger) -> None:
    newest = replace(PROFILE, busy_fraction=0.5)
    others = (replace(PROFILE, owner_uid=1001), replace(PROFILE, gpu_name="RTX 3090"), replace(PROFILE, signature="x"))
    remember(ledger, PROFILE, newest, *others)
    with ledger.view() as view:
        assert view.profiles.newest(*CALL) == newest
        assert view.profiles.newest("never", PROFILE.gpu_name, 1000) is None
        assert view.profiles.of_job("f" * 12) is None
        assert view.profiles.all(1000, 10) == [others[2], others[1], newest]
        assert len(view.profiles.all(None, 10)) == 4


def test_a_plain_run_takes_away_nothing_that_antagonists_told(ledger: Ledger) -> None:
    plain = replace(PROFILE, busy_fraction=0.5, sensitivity=Sensitivity(), contests=())
    remember(ledger, PROFILE, plain, replace(plain, owner_uid=1001))
    told = replace(plain, sensitivity=PROFILE.sensitivity, contests=PROFILE.contests)
    with ledger.view() as view:
        assert view.profiles.newest(*CALL) == told
        assert view.profiles.all(1000, 10) == [told]
        assert view.profiles.of_job(f"{1:012x}") == plain
        assert view.profiles.newest(*CALL[:2], 1001) == replace(plain, owner_uid=1001)


def test_the_oldest_profiles_are_forgotten(ledger: Ledger) -> None:
    remember(ledger, *(replace(PROFILE, signature=f"program{n}") for n in range(KEPT_PROFILES + 1)))
    with ledger.view() as view:
        assert view.profiles.newest("program0", *CALL[1:]) is None
        assert view.profiles.newest("program1", *CALL[1:]) is not None
