"""How much a job should reserve, told by what earlier runs held."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from pgpu.advising.memory_demand import (
    Basis,
    count_ended,
    estimate,
    family_of,
    most_at_once,
    program_of,
    retry_bytes,
    signature_of,
    was_too_small,
)
from pgpu.model import Run
from pgpu.structs import replace
from pgpu.units import GIB, MIB

CALL = "train.py@0a1b2c3d --epochs 5 --batch-size 32"
RUN = Run(
    signature=CALL,
    gpu_name="RTX 3090",
    job_id="0" * 12,
    owner_uid=1000,
    slice_bytes=20 * GIB,
    peak_bytes=1205 * MIB,
    context_bytes=0,
    refusals=0,
    duration_seconds=80.0,
    ended_at_seconds=1.0,
    exit_code=0,
)

MODEL_SIZES = (("a", 1), ("b", 3), ("c", 2))
peaks_bytes = st.integers(min_value=MIB, max_value=17 * GIB)
runs = st.builds(
    lambda peak, code, refusals, seconds, batch: replace(
        RUN,
        signature=CALL.replace("32", str(batch)),
        peak_bytes=peak,
        exit_code=code,
        refusals=refusals,
        duration_seconds=seconds,
    ),
    st.integers(min_value=0, max_value=20 * GIB),
    st.sampled_from([0, 0, 0, 1, 137, None]),
    st.integers(min_value=0, max_value=2),
    st.floats(min_value=0, max_value=1e5),
    st.sampled_from([8, 16, 32, 64]),
)


def at_batch(batch: int, peak_bytes: int) -> Run:
    return replace(RUN, signature=CALL.replace("32", str(batch)), peak_bytes=peak_bytes)


def of_peaks(peaks: Sequence[int]) -> list[Run]:
    return [replace(RUN, peak_bytes=peak) for peak in peaks]


def test_nothing_is_known_of_a_program_that_never_ran() -> None:
    assert estimate(CALL, []).basis is Basis.UNKNOWN
    assert estimate(CALL, [RUN]).basis is Basis.FAMILY
    assert estimate(CALL, [RUN, RUN, RUN]).basis is Basis.HISTORY


def test_p2s_job_reserves_less_than_1_3_of_what_it_uses_by_its_fourth_run() -> None:
    memory_bytes = estimate(CALL, [RUN] * 3).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes <= 1.3 * 1205 * MIB


@given(st.lists(peaks_bytes, min_size=3, max_size=20))
def test_most_runs_of_the_same_call_fit_in_the_estimate(peaks: list[int]) -> None:
    memory_bytes = estimate(CALL, of_peaks(peaks)).memory_bytes
    assert memory_bytes is not None
    assert sum(peak <= memory_bytes for peak in peaks) >= 0.85 * len(peaks)


@given(st.lists(peaks_bytes, min_size=1, max_size=2))
def test_with_fewer_than_three_runs_none_of_them_is_above_the_estimate(peaks: list[int]) -> None:
    memory_bytes = estimate(CALL, of_peaks(peaks)).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes > max(peaks)


@given(st.integers(64 * MIB, 80 * GIB))
def test_runs_in_their_own_learnt_slices_count_for_the_next_estimate(peak: int) -> None:
    history = [replace(RUN, peak_bytes=peak, slice_bytes=90 * GIB)] * 3
    for _ in range(20):
        peak = int(peak * 1.01)
        memory_bytes = estimate(CALL, history).memory_bytes
        assert memory_bytes is not None
        history = [*history, replace(RUN, peak_bytes=peak, slice_bytes=max(peak, memory_bytes))]
    memory_bytes = estimate(CALL, history).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes > 0.98 * peak


@given(st.lists(runs, max_size=30))
def test_the_same_runs_always_give_the_same_estimate_and_a_basis_for_it(history: list[Run]) -> None:
    found = estimate(CALL, history)
    assert found == estimate(CALL, list(history))
    assert (found.memory_bytes is None) == (found.basis is Basis.UNKNOWN)
    assert found.memory_bytes is None or found.memory_bytes > 0


@given(st.lists(st.floats(min_value=0.5, max_value=1.0), min_size=1, max_size=20), peaks_bytes)
def test_greed_never_enlarges_a_request(shares: list[float], peak: int) -> None:
    greedy = [replace(RUN, peak_bytes=int(share * RUN.slice_bytes) + 1, sizes_itself=True) for share in shares]
    modest = of_peaks([min(peak, 4 * GIB)] * 3)
    assert estimate(CALL, [*modest, *greedy]) == estimate(CALL, modest)


@given(st.integers(64 * MIB, 11 * GIB))
def test_a_program_that_asks_what_is_free_is_learnt_in_the_slices_that_were_learnt_for_it(peak: int) -> None:
    history = [replace(RUN, peak_bytes=peak)]
    for _ in range(5):
        memory_bytes = estimate(CALL, history).memory_bytes
        assert memory_bytes is not None
        history = [*history, replace(RUN, slice_bytes=memory_bytes, peak_bytes=peak, sizes_itself=True)]
    assert (estimate(CALL, history).basis, estimate(CALL, history).runs) == (Basis.HISTORY, 6)


def test_a_program_that_takes_all_gets_the_smallest_slice_in_which_it_ended_well() -> None:
    slices = (20 * GIB, 2 * GIB, 4 * GIB)
    history = [replace(RUN, slice_bytes=size, peak_bytes=size - MIB, sizes_itself=True) for size in slices]
    found = estimate(CALL, history)
    assert (found.memory_bytes, found.basis) == (2 * GIB, Basis.SUFFICED)


def test_the_next_slice_is_above_what_was_refused_since_the_last_good_run() -> None:
    refused = replace(RUN, slice_bytes=1500 * MIB, peak_bytes=1490 * MIB, refusals=3, exit_code=1)
    assert was_too_small(refused)
    assert estimate(CALL, [RUN, RUN, RUN, refused]).memory_bytes == retry_bytes(1500 * MIB, 0)
    attempted = replace(refused, attempted_bytes=3 * GIB)
    memory_bytes = estimate(CALL, [RUN, RUN, RUN, attempted]).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes >= 1.1 * 3 * GIB
    assert estimate(CALL, [RUN, RUN, refused, RUN]) == estimate(CALL, [RUN, RUN, RUN])


@given(st.integers(GIB, 20 * GIB))
def test_what_a_run_attempted_in_vain_counts_as_its_need(attempted: int) -> None:
    refused = replace(RUN, refusals=1, exit_code=1, duration_seconds=2.0, peak_bytes=GIB, attempted_bytes=attempted)
    memory_bytes = estimate(CALL, [refused]).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes >= 1.1 * attempted


def test_a_run_that_broke_off_at_its_beginning_tells_nothing_and_a_long_one_does() -> None:
    broken = replace(RUN, exit_code=1, duration_seconds=2.0, peak_bytes=300 * MIB)
    stopped = replace(RUN, exit_code=143, duration_seconds=3600.0)
    assert estimate(CALL, [broken] * 5).memory_bytes is None
    assert estimate(CALL, [stopped] * 3).basis is Basis.HISTORY


def test_a_call_with_other_numbers_gets_what_the_law_and_the_runs_nearest_to_it_say() -> None:
    history = [at_batch(batch, GIB + batch * 100 * MIB) for batch in (8, 16, 24, 48, 64)]
    found = estimate(CALL, history)
    assert found.basis is Basis.FAMILY
    assert found.memory_bytes is not None
    assert 1.0 < found.memory_bytes / (GIB + 3200 * MIB) < 1.2


def test_beyond_all_that_was_seen_the_law_gets_a_larger_margin() -> None:
    history = [at_batch(batch, GIB + batch * 100 * MIB) for batch in range(1, 13)]
    found = estimate(CALL, history)
    assert found.memory_bytes is not None
    assert found.memory_bytes >= 1.17 * (GIB + 3200 * MIB) * 0.999


def of_model(name: str, batch: int, peak_bytes: int) -> Run:
    return replace(RUN, signature=f"train.py@0a1b2c3d --model {name} --batch-size {batch}", peak_bytes=peak_bytes)


MODELS = [of_model(name, batch, size * (10 + batch) * 64 * MIB) for name, size in MODEL_SIZES for batch in (8, 32, 128)]


def test_a_new_family_gets_what_most_of_the_program_would_need_at_its_numbers() -> None:
    found = estimate(of_model("d", 64, 0).signature, MODELS)
    assert found.basis is Basis.PROGRAM
    assert found.memory_bytes is not None
    assert 2.0 < found.memory_bytes / (74 * 64 * MIB) < 4.0
    assert found.kept_bytes == 0, "its need is not known yet"


def test_one_run_of_a_family_and_the_law_of_its_program_tell_another_of_its_calls() -> None:
    found = estimate(of_model("d", 64, 0).signature, [*MODELS, of_model("d", 8, 5 * 18 * 64 * MIB)])
    assert found.basis is Basis.FAMILY
    assert found.memory_bytes is not None
    assert 1.0 < found.memory_bytes / (5 * 74 * 64 * MIB) < 1.9
    assert found.kept_bytes == 0, "its one run may show too little, and the estimate has a factor for that"


def test_a_job_keeps_what_three_runs_of_its_family_show_although_it_holds_less() -> None:
    found = estimate(CALL, [at_batch(batch, GIB + batch * 100 * MIB) for batch in (8, 16, 24)])
    assert found.kept_bytes == found.memory_bytes


def test_calls_with_another_count_of_numbers_tell_nothing() -> None:
    assert estimate("train.py@0a1b2c3d --help", MODELS).basis is Basis.UNKNOWN


@given(st.lists(peaks_bytes, min_size=2, max_size=12), st.integers(2, 8))
def test_an_estimate_has_the_same_unit_as_the_peaks(peaks: list[int], factor: int) -> None:
    points = [at_batch(8 * place + 8, peak) for place, peak in enumerate(peaks)]
    scaled = [replace(run, peak_bytes=factor * run.peak_bytes, slice_bytes=factor * run.slice_bytes) for run in points]
    one, other = estimate(CALL, points).memory_bytes, estimate(CALL, scaled).memory_bytes
    assert one is not None
    assert other is not None
    assert abs(other / one - factor) < 1e-3 * factor


def test_a_new_family_starts_more_jobs_with_each_that_ends() -> None:
    family, other = family_of(CALL).text, replace(RUN, signature="train.py@0a1b2c3d --model b")
    failed = replace(RUN, exit_code=1, duration_seconds=2.0)
    refused = replace(RUN, exit_code=1, refusals=1)
    assert count_ended(family, [RUN, other, failed, refused, at_batch(8, GIB), replace(RUN, exit_code=1)]) == 3
    limits = [most_at_once(ended) for ended in range(7)]
    assert limits == [4, 12, 20, 28, 36, 44, None]


def test_a_signature_names_the_program_and_leaves_paths_out() -> None:
    one = signature_of("train.py", "/home/a/train.py", ["--epochs", "5", "--data=/data/mnist", "../out/17"])
    other = signature_of("train.py", "/home/a/train.py", ["--epochs", "5", "--data=/scratch/x", "/tmp/out/18"])
    assert one == other
    assert one.endswith(" --epochs 5 --data=* *")
    assert signature_of("train.py", "/home/b/train.py", []) != signature_of("train.py", "/home/a/train.py", [])
    assert program_of(one).startswith("train.py@")


def test_what_may_name_a_model_or_is_code_is_no_path() -> None:
    calls = ["org/small", "org/large", "ls /a", "ls /b", "a=/b c", "."]
    signatures = {signature_of("x", "x", ["-c", call]) for call in calls}
    assert len(signatures) == len(calls)


def test_a_family_is_the_call_without_its_numbers() -> None:
    call = signature_of("a", "a", ["--batch-size=64", "resnet50", "--lr", "0.1", "1e-3", "-n2"])
    assert family_of(call).numbers == (64.0, 0.1)
    assert family_of(call).text == family_of(call.replace("64", "128")).text
    assert family_of("a@12345678").numbers == (), "a digest is no number"


@given(st.lists(st.text(), max_size=8), st.text())
@example(["-\x80=", "--a\nb=/c", "--\udcff=1"], "train.py")
def test_a_signature_is_one_printable_line_whatever_the_arguments_are(arguments: list[str], name: str) -> None:
    signature = signature_of(name, "x", arguments)
    assert signature.isascii()
    assert signature.isprintable()
    family_of(signature)
