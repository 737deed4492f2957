"""How much a job should reserve, told by what earlier runs held."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from pgpu.advising.memory_demand import (
    Basis,
    estimate,
    estimate_growth_bytes,
    family_of,
    program_of,
    retry_bytes,
    right_size_bytes,
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


def test_nothing_is_told_before_three_runs_of_the_same_call() -> None:
    assert estimate(CALL, [RUN, RUN]).memory_bytes is None
    assert estimate(CALL, [RUN, RUN, RUN]).basis is Basis.HISTORY


def test_p2s_job_reserves_less_than_1_3_of_what_it_uses_by_its_fourth_run() -> None:
    memory_bytes = estimate(CALL, [RUN] * 3).memory_bytes
    assert memory_bytes == right_size_bytes(1205 * MIB)
    assert memory_bytes is not None
    assert memory_bytes <= 1.3 * 1205 * MIB


@given(st.lists(peaks_bytes, min_size=3, max_size=99))
def test_no_peak_of_the_same_call_is_above_the_estimate(peaks: list[int]) -> None:
    memory_bytes = estimate(CALL, of_peaks(peaks)).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes > max(peaks)


@given(st.lists(runs, max_size=30))
def test_the_same_runs_always_give_the_same_estimate_and_a_basis_for_it(history: list[Run]) -> None:
    found = estimate(CALL, history)
    assert found == estimate(CALL, list(history))
    assert (found.memory_bytes is None) == (found.basis is Basis.UNKNOWN)
    assert found.memory_bytes is None or found.memory_bytes > 0


@given(st.lists(runs, max_size=30))
def test_a_run_of_another_program_changes_nothing(history: list[Run]) -> None:
    stranger = replace(RUN, signature="other.py@ffffffff --epochs 5 --batch-size 32", peak_bytes=17 * GIB)
    assert estimate(CALL, [stranger, *history, stranger]) == estimate(CALL, history)


@given(st.lists(st.floats(min_value=0.5, max_value=1.0), min_size=1, max_size=20), peaks_bytes)
def test_greed_never_enlarges_a_request(shares: list[float], peak: int) -> None:
    greedy = [replace(RUN, peak_bytes=int(share * RUN.slice_bytes) + 1, sizes_itself=True) for share in shares]
    modest = of_peaks([peak] * 3)
    assert estimate(CALL, [*modest, *greedy]) == estimate(CALL, modest)


def test_a_program_that_takes_all_gets_the_smallest_slice_in_which_it_ended_well() -> None:
    slices = (20 * GIB, 2 * GIB, 4 * GIB)
    history = [replace(RUN, slice_bytes=size, peak_bytes=size - MIB, sizes_itself=True) for size in slices]
    found = estimate(CALL, history)
    assert (found.memory_bytes, found.basis) == (2 * GIB, Basis.SUFFICED)


@given(st.integers(64 * MIB, 80 * GIB))
def test_a_run_in_the_slice_that_was_learnt_for_it_counts_for_the_next_one(peak: int) -> None:
    learnt = right_size_bytes(peak)
    history = [replace(RUN, slice_bytes=learnt, peak_bytes=peak)] * 3
    assert estimate(CALL, history).runs == 3


def test_a_refusal_after_the_last_good_run_enlarges_the_next_request() -> None:
    refused = replace(RUN, slice_bytes=1500 * MIB, peak_bytes=1490 * MIB, refusals=3, exit_code=1)
    assert was_too_small(refused)
    assert estimate(CALL, [RUN, RUN, RUN, refused]).memory_bytes == retry_bytes(1500 * MIB, 0)
    assert estimate(CALL, [RUN, RUN, refused, RUN]).memory_bytes == right_size_bytes(1490 * MIB), "what it held counts"


def test_a_run_that_broke_off_at_its_beginning_tells_nothing_and_a_long_one_does() -> None:
    broken = replace(RUN, exit_code=1, duration_seconds=2.0, peak_bytes=300 * MIB)
    stopped = replace(RUN, exit_code=143, duration_seconds=3600.0)
    assert estimate(CALL, [broken] * 5).memory_bytes is None
    assert estimate(CALL, [stopped] * 3).basis is Basis.HISTORY


def test_a_larger_batch_gets_more_than_the_straight_line_and_not_more_than_in_proportion() -> None:
    history = [at_batch(8, 4 * GIB), at_batch(16, 6 * GIB)]
    found = estimate(CALL, history)
    assert found.basis is Basis.GROWTH
    assert found.memory_bytes is not None
    assert 10 * GIB < found.memory_bytes <= 12 * GIB


def test_growth_is_not_believed_further_than_a_doubling_or_where_the_peak_hardly_grew() -> None:
    assert estimate(CALL, [at_batch(4, 4 * GIB), at_batch(8, 6 * GIB)]).memory_bytes is None
    assert estimate(CALL, [at_batch(8, 4 * GIB), at_batch(16, 4 * GIB + 400 * MIB)]).memory_bytes is None


def test_a_number_between_two_that_were_seen_gets_what_its_neighbours_need() -> None:
    found = estimate(CALL, [at_batch(16, 6 * GIB), at_batch(64, 9 * GIB)])
    assert found.memory_bytes is not None
    assert found.memory_bytes > 9 * GIB


def test_a_number_without_effect_is_ignored_once_enough_of_its_values_were_seen() -> None:
    seeds = [((seed, 32.0), 2 * GIB) for seed in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert estimate_growth_bytes((6.0, 32.0), seeds[:4]) is None
    assert estimate_growth_bytes((6.0, 32.0), seeds) == int(1.1 * 2 * GIB)
    assert estimate_growth_bytes((6.0, 64.0), seeds) is None, "a batch that was never seen"


@given(
    st.integers(min_value=1, max_value=1000),
    st.integers(min_value=300 * MIB, max_value=8 * GIB),
    st.integers(min_value=2 * MIB, max_value=200 * MIB),
)
def test_a_peak_that_grows_in_a_straight_line_is_never_under_reserved(first: int, fixed: int, step: int) -> None:
    points = [((float(number),), fixed + step * number) for number in (first, 2 * first)]
    found = estimate_growth_bytes((4.0 * first,), points)
    assert found is None or found >= fixed + step * 4 * first


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
