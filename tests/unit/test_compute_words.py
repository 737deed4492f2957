"""Words of compute: options, job files, what a limit file is told, and what samples of a board tell."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.client import FakeClient
from tests.fakes.machine import FileEnforcer
from tests.unit.conftest import Run

from pgpu.cli.output import job_tables
from pgpu.client import GpuTime, JobReport
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.job_submission import refuse_unsupported
from pgpu.engine.leases.lease_resize import compute_words, neighbours
from pgpu.engine.settings import EngineSettings
from pgpu.engine.watch.gpu_time import (
    MOST_SAMPLES,
    Sample,
    gpu_demand,
    mean_demand,
    read_samples,
    take_sample,
    time_shares,
    write_samples,
)
from pgpu.errors import RequestError
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, Request, SharingMode, SharingWish, Slice
from pgpu.structs import replace
from pgpu.units import GIB, format_share, parse_compute_share

SUBMIT = ("submit", "--memory", "2GiB")
SECOND_NS = 1_000_000_000


def named(client: FakeClient, name: str = "one") -> Request:
    return client.job(name).job.request


@pytest.mark.parametrize(
    ("text", "share"), [("30%", 0.3), ("0.3", 0.3), ("100%", 1.0), ("1.0", 1.0), (" 12.5 %", 0.125), ("1%", 0.01)]
)
def test_a_share_is_written_in_hundredths_or_as_a_fraction(text: str, share: float) -> None:
    assert parse_compute_share(text) == share


@given(st.integers(100, 10_000))
def test_a_share_that_is_written_out_is_read_back(hundredths: int) -> None:
    share = hundredths / 10_000
    assert parse_compute_share(format_share(share)) == share


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--compute", "30"), "'30' is ambiguous"),
        (("--compute", "1"), "'1' is ambiguous"),
        (("--compute", "0.5%"), "'0.5%' is not between 1% and 100%"),
        (("--compute", "101%"), "'101%' is not between 1% and 100%"),
        (("--compute", "half"), "'half' is not a share of a GPU's time"),
        (("--compute", "-3%"), "'-3%' is not a share of a GPU's time"),
        (("--strict",), "--strict needs a share"),
        (("--sharing", "nicely"), "'nicely' is no sharing mode"),
        (("--sharing", "exclusive", "--compute", "30%"), "has all of their time"),
        (("--sharing", "exclusive", "--oversubscribe"), "has no other job to move its memory for"),
        (("--sharing", "mps", "--gpus", "2"), "MPS is for jobs on one GPU"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_one_line_with_a_hint(
    run: Run, client: FakeClient, words: tuple[str, ...], said: str, capsys: Any
) -> None:
    for verb in (("run", "--memory", "1GiB"), SUBMIT):
        assert run(*verb, *words, "--", "true") == 125
        first, hint = capsys.readouterr().err.splitlines()
        assert said in first
        assert "hint" in hint
    assert client.stored == {}


def test_options_become_a_request(run: Run, client: FakeClient) -> None:
    words = ("--compute", "30%", "--strict", "--sharing", "mps", "--oversubscribe", "--preempt")
    assert run(*SUBMIT, "--name", "one", *words, "--", "true") == 0
    asked = Request(2 * GIB, 1, 0.3, 0, is_strict=True, sharing=SharingWish.MPS, oversubscribes=True, preempts=True)
    assert named(client) == asked


def test_how_jobs_share_by_default_is_a_setting(run: Run, client: FakeClient, monkeypatch: Any) -> None:
    monkeypatch.setenv("PGPU_SHARING", "exclusive")
    assert run(*SUBMIT, "--name", "one", "--", "true") == 0
    assert run(*SUBMIT, "--name", "two", "--sharing", "auto", "--", "true") == 0
    assert [named(client, name).sharing for name in ("one", "two")] == [SharingWish.EXCLUSIVE, SharingWish.AUTO]


def test_a_file_of_jobs_has_the_same_words(run: Run, client: FakeClient, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[defaults]\nmemory = "1GiB"\nsharing = "auto"\n'
        '[jobs.one]\ncommand = "true"\ncompute = 0.3\nstrict = true\n'
        '[jobs.two]\ncommand = "true"\ncompute = "50%"\nsharing = "time-slice"\npreempt = true\n'
    )
    assert run("submit", str(path)) == 0
    one, two = named(client), named(client, "two")
    assert (one.compute_share, one.is_strict, one.sharing) == (0.3, True, SharingWish.AUTO)
    assert (two.compute_share, two.preempts, two.sharing) == (0.5, True, SharingWish.TIME_SLICE)


def test_a_share_is_resized_alone_with_memory_and_away(run: Run, client: FakeClient, capsys: Any) -> None:
    assert run(*SUBMIT, "--name", "one", "--compute", "30%", "--strict", "--", "true") == 0
    assert run("resize", "one", "--compute", "50%") == 0
    assert (named(client).compute_share, named(client).is_strict, named(client).memory_bytes) == (0.5, True, 2 * GIB)
    assert run("resize", "one", "--memory", "1GiB", "--fair") == 0
    assert (named(client).compute_share, named(client).is_strict, named(client).memory_bytes) == (0.5, False, GIB)
    assert run("resize", "one", "--strict") == 0
    assert run("resize", "one", "--compute", "none") == 0
    assert (named(client).compute_share, named(client).is_strict) == (None, False)
    capsys.readouterr()
    assert run("resize", "one") == 125
    assert "nothing is to change" in capsys.readouterr().err
    assert run("resize", "one", "--strict") == 125
    capsys.readouterr()
    assert run("resize", "one", "--compute", "40%", "--strict", "--fair") == 125
    assert "contradict each other" in capsys.readouterr().err
    assert named(client).compute_share is None


def test_what_these_gpus_do_not_have_is_refused_and_never_left_out() -> None:
    settings = EngineSettings(Path("/x"), Path("/y"))
    with pytest.raises(RequestError, match="--sharing mps"):
        refuse_unsupported(Request(GIB, sharing=SharingWish.MPS), settings)
    refuse_unsupported(Request(GIB, sharing=SharingWish.AUTO), settings)


def entry(
    name: str, request: Request, *uuids: str, mode: SharingMode = SharingMode.TIME_SLICE, owner_uid: int = 0
) -> Entry:
    slices = tuple(Slice(uuid, request.memory_bytes, request.compute_share) for uuid in uuids)
    lease = Lease(name, slices, 1.0, sharing=mode)
    return Entry(
        Job(name, JobSpec(("true",), "process"), request, JobState.RUNNING, 0.0, lease=lease, owner_uid=owner_uid)
    )


def words(of: Entry, paced: list[Entry], *, by_user: bool = True) -> tuple[ComputeWord, ...]:
    return compute_words(of.job, paced, by_user=by_user)


PLAIN = entry("plain", Request(GIB), "GPU-0")
SHARED = entry("shared", Request(GIB, 1, 0.3, is_strict=True), "GPU-0", "GPU-1")
FAR = entry("far", Request(GIB), "GPU-2")
OTHERS = entry("others", Request(GIB), "GPU-0", owner_uid=1)


def test_launches_of_a_job_without_a_share_wait_only_beside_one_that_has_one() -> None:
    everybody = [PLAIN, SHARED, FAR]
    [alone] = words(PLAIN, [PLAIN, FAR])
    assert (alone.is_shared, alone.is_measured, alone.share, alone.weight) == (False, True, 0.0, 100)
    [beside] = words(PLAIN, everybody)
    assert beside.is_shared
    assert not words(FAR, everybody)[0].is_shared
    for word in words(SHARED, everybody):
        assert (word.share, word.is_shared, word.is_strict) == (0.3, True, True)
    assert neighbours(SHARED.job, everybody) == ["plain"]


def test_beside_another_user_s_job_a_user_has_a_least_part_of_the_time() -> None:
    third = entry("third", Request(GIB), "GPU-0", owner_uid=2)
    [word] = words(PLAIN, [PLAIN, OTHERS, FAR])
    assert (word.is_shared, word.user_share) == (False, 0.5)
    assert words(FAR, [PLAIN, OTHERS, FAR])[0].user_share == 0.0
    assert words(PLAIN, [PLAIN, OTHERS, third])[0].user_share == pytest.approx(1 / 3)
    assert words(PLAIN, [PLAIN, OTHERS], by_user=False)[0].user_share == 0.0


def test_what_shares_guarantee_is_not_divided_between_users() -> None:
    assert words(OTHERS, [PLAIN, SHARED, OTHERS])[0].user_share == pytest.approx(0.35)
    everything = entry("all", Request(GIB, 1, 1.0), "GPU-0")
    assert words(OTHERS, [everything, OTHERS])[0].user_share > 0.0


@given(st.floats(0, 1), st.integers(0, 255), st.integers(0, 65_535), st.booleans())
def test_a_word_is_read_as_it_was_written(part: float, times_held: int, weight: int, is_shared: bool) -> None:
    word = ComputeWord(0.3, weight, is_measured=True, is_shared=is_shared, user_share=part, times_held=times_held)
    read = ComputeWord.unpack(word.packed)
    assert word.packed < 1 << 64
    assert replace(read, user_share=part) == word
    assert read.user_share == pytest.approx(part, abs=0.001)
    assert (read.user_share > 0) == (part > 0)


def test_a_priority_is_a_weight_and_makes_launches_wait() -> None:
    high = entry("high", Request(GIB, priority=50), "GPU-0")
    assert [word.weight for word in words(high, [high])] == [200]
    assert words(PLAIN, [PLAIN, high])[0].is_shared


@pytest.mark.parametrize("mode", [SharingMode.MPS, SharingMode.EXCLUSIVE])
def test_hardware_shares_in_the_other_modes(mode: SharingMode) -> None:
    job = entry("one", Request(GIB, 1, 0.3, is_strict=True, sharing=SharingWish(mode.value)), "GPU-0", mode=mode)
    [word] = words(job, [job, OTHERS])
    assert (word.is_measured, word.is_shared, word.is_strict, word.user_share) == (True, False, False, 0.0)


def samples(*used_ms: int, step_ns: int = SECOND_NS) -> list[Sample]:
    return [
        Sample(number * step_ns, ((used * 1_000_000, 0, number, False, used * 1_000_000),))
        for number, used in enumerate(used_ms)
    ]


def working(*ms: tuple[int, int], launches: int = 1) -> list[Sample]:
    """A sample a second of milliseconds used and in flight."""
    return [
        Sample(number * SECOND_NS, ((used * 1_000_000, 0, launches, False, in_flight * 1_000_000),))
        for number, (used, in_flight) in enumerate(ms)
    ]


def test_the_demand_of_a_job_is_the_same_alone_and_on_a_saturated_gpu() -> None:
    """7 ms of kernels after each 86 ms on the host; beside others the kernels take 70 ms."""
    alone, crowded = 1000 / 93, 1000 / 156
    assert gpu_demand(working((0, 0), (round(7 * alone), round(7 * alone)))) == pytest.approx(7 / 93, rel=0.02)
    assert gpu_demand(working((0, 0), (round(7 * crowded), round(70 * crowded)))) == pytest.approx(7 / 93, rel=0.05)
    assert gpu_demand(working((0, 0), (70, 1000))) == pytest.approx(1.0)


def test_a_demand_is_unknown_until_work_was_seen_for_a_while() -> None:
    assert gpu_demand([]) is None
    assert gpu_demand(working((0, 0))) is None
    assert gpu_demand(working(*[(0, 0)] * 9, launches=0)) is None
    loading = [*working(*[(0, 0)] * 9, launches=0), Sample(9 * SECOND_NS, ((0, 0, 1, False, 0),))]
    assert gpu_demand(loading) is None
    assert gpu_demand([*loading, Sample(10 * SECOND_NS, ((SECOND_NS // 2, 0, 2, False, SECOND_NS // 2),))]) == 0.5


def test_the_demand_of_a_whole_run_counts_its_pauses() -> None:
    [_, last] = working((0, 0), (2_000, 6_000))
    assert mean_demand(last, 10.0) == pytest.approx(0.2 / (0.2 + 1 - 0.6))
    assert mean_demand(last, 0.1) is None
    assert mean_demand(replace(last, gpus=last.gpus * 2), 10.0) is None
    assert mean_demand(last, 1.0) == 1.0


@pytest.mark.parametrize("forged", [(10**9, 0), (10**9, 10**9), (-5, -5), (0, 10**9)])
def test_a_forged_demand_is_a_share(forged: tuple[int, int]) -> None:
    demand = gpu_demand(working((0, 0), forged))
    assert demand is not None
    assert 0.0 <= demand <= 1.0


def test_samples_tell_what_was_got_over_the_last_second_ten_and_sixty() -> None:
    used = [0]
    for second in range(60):
        used.append(used[-1] + (100 if second < 50 else 300 if second < 59 else 700))
    [time] = time_shares(samples(*used), ["GPU-0"])
    assert [time.got_over_1_second, time.got_over_10_seconds] == pytest.approx([0.7, 0.34])
    assert time.got_over_60_seconds == pytest.approx((5000 + 2700 + 700) / 60_000)
    assert time.used_seconds == pytest.approx(8.4)
    assert time.launches == 60


def test_a_young_job_s_last_minute_is_its_life_and_a_board_is_believed_only_as_far_as_time_went() -> None:
    assert time_shares([], ["GPU-0"]) == ()
    [first] = time_shares(samples(500), ["GPU-0"])
    assert first.got_over_1_second is None
    [second] = time_shares(samples(0, 400), ["GPU-0"])
    assert second.got_over_60_seconds == pytest.approx(0.4)
    [forged] = time_shares(samples(0, 10**9), ["GPU-0"])
    assert forged.got_over_1_second == 1.0
    [backwards] = time_shares(samples(10**9, 0), ["GPU-0"])
    assert backwards.got_over_1_second == 0.0


def test_samples_are_read_as_they_were_written_and_nonsense_is_none(tmp_path: Path) -> None:
    path = tmp_path / "time"
    assert read_samples(path) == []
    many = samples(*range(MOST_SAMPLES))
    write_samples(path, many)
    assert read_samples(path) == many
    for nonsense in (b"", b"[[1]]", b'{"a": 1}', b'[["x", [[1, 2]]]]', b"\xff"):
        path.write_bytes(nonsense)
        assert read_samples(path) == []
    write_samples(tmp_path / "nowhere" / "time", many)


def test_whoever_takes_over_a_job_goes_on_with_the_samples_that_were_left(tmp_path: Path) -> None:
    path, lease = tmp_path / "time", Lease("one", (Slice("GPU-0", GIB),), 1.0)
    directory = tmp_path / "slices" / "one"
    directory.mkdir(parents=True)
    take_sample(FileEnforcer(tmp_path), lease, path, 0)
    assert read_samples(path) == []
    (directory / "board").write_text("[1, 0]")
    for second in (*range(MOST_SAMPLES + 5), 1000):
        take_sample(FileEnforcer(tmp_path), lease, path, second * SECOND_NS)
    assert len(read_samples(path)) == MOST_SAMPLES
    assert [each.at_ns // SECOND_NS for each in read_samples(path)[-2:]] == [MOST_SAMPLES + 4, 1000]


def test_a_table_tells_share_mode_and_turn() -> None:
    waits = GpuTime("GPU-0", 1.0, 2.0, 3, 0.301, 0.25, None, is_held=True)
    has = GpuTime("GPU-0", 1.0, 2.0, 3, 0.699, 0.6, 0.5, turn_since_seconds=990.0, turn_until_seconds=1009.0)
    first = entry("one", Request(GIB, 1, 0.3, is_strict=True, oversubscribes=True), "GPU-0").job
    second = entry("two", Request(GIB, oversubscribes=True), "GPU-0").job
    alone = entry("alone", Request(GIB), "GPU-1", mode=SharingMode.EXCLUSIVE).job
    table = job_tables.of_jobs(
        [JobReport(first, (), (waits,)), JobReport(second, (), (has,)), JobReport(alone, ())],
        is_uncut=True,
        now_seconds=1000.0,
    )
    columns = dict(zip(table.columns, map(list, zip(*table.rows, strict=True)), strict=True))
    assert columns["SHARE"] == ["30% strict", "", ""]
    assert columns["GOT 1s/10s/60s"] == ["30% 25% -", "70% 60% 50%", ""]
    assert columns["TURN"] == ["waits", "has it, 9s left", ""]
    assert columns["MODE"] == ["", "", "exclusive"]
