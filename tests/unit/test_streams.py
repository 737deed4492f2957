"""Records and frames survive being cut anywhere."""

import contextlib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.streams.frames import (
    FrameDecoder,
    Hello,
    Kind,
    decode_gap,
    decode_hello,
    encode_frame,
    encode_gap,
    encode_hello,
)
from pgpu.engine.streams.records import Record, RecordDecoder, encode, first_record

records = st.lists(
    st.builds(Record, st.sampled_from(["stdout", "stderr"]), st.binary(max_size=50), st.integers(0, 2**63)), max_size=8
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(records, st.lists(st.integers(0, 10_000), max_size=8))
def test_records_come_back_however_they_were_cut(written: list[Record], places: list[int]) -> None:
    decoder = RecordDecoder()
    pieces = cut(b"".join(encode(record) for record in written), places)
    assert [record for piece in pieces for record in decoder.feed(piece)] == written


@given(
    st.lists(
        st.builds(
            Record,
            st.sampled_from(["stdout", "stderr"]),
            st.binary(max_size=50).filter(lambda payload: not re.search(rb"[\x01\x02]", payload)),
            st.integers(1_600_000_000 * 10**9, 2_000_000_000 * 10**9),
        )
    ),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)
def test_the_first_record_is_found_in_a_log_that_is_cut_at_both_ends(
    written: list[Record], begin: int, left_out: int
) -> None:
    # A time has bytes of any value, so a cut that is not at a record is within a payload.
    begins = [0, *itertools.accumulate(len(encode(record)) for record in written)]
    data = b"".join(encode(record) for record in written)
    place = begin % (len(written) + 1)
    within = begin % (len(written[place - 1].payload) + 1) if place else 0
    cut_at = begins[place] - within
    end = max(cut_at, len(data) - left_out % 200)
    found = first_record(data[cut_at:end])
    whole = [each for each in begins if cut_at <= each <= end - 13]
    assert found == (whole[0] - cut_at if whole else end - cut_at)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=50))), st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_come_back_however_they_were_cut(said: list[tuple[Kind, bytes]], places: list[int]) -> None:
    decoder = FrameDecoder()
    pieces = cut(b"".join(encode_frame(kind, payload) for kind, payload in said), places)
    assert [(frame.kind, frame.payload) for piece in pieces for frame in decoder.feed(piece)] == said


@given(st.binary(min_size=13, max_size=200))
def test_garbage_is_refused_or_ignored_and_never_anything_else(garbage: bytes) -> None:
    for decoder in (FrameDecoder(), RecordDecoder()):
        with contextlib.suppress(ValueError):
            list(decoder.feed(garbage))


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"1", b'{"offset": "x"}', b"\xff"])
def test_a_greeting_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_hello(payload)


@pytest.mark.parametrize(
    "offset",
    [b"Infinity", b"NaN", b"1e400", b"1.5", b"-1", b'"5"', b"true", b"null", b"9" * 30, b"9" * 400, b"[" * 900],
)
def test_an_offset_that_is_none_is_refused(offset: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_hello(b'{"holds_back": true, "owns_stdin": false, "offset": %s}' % offset)


def test_greetings_and_gaps_come_back() -> None:
    hello = Hello(5, holds_back=True, owns_stdin=False)
    (frame,) = FrameDecoder().feed(encode_hello(hello))
    assert decode_hello(frame.payload) == hello
    (frame,) = FrameDecoder().feed(encode_gap(7))
    assert decode_gap(frame.payload) == 7
