"""No word that somebody else chose steers the terminal of whoever reads it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.cli.output.console import visible, visible_json

STEERING = ["\x1b[31m", "\x07", "\r", "\n", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u200b", "\u2028"]


def test_a_byte_that_is_no_text_is_written_out() -> None:
    assert visible("a\udc9bb") == "a\\x9bb"
    assert visible("a\ud800b") == "a\\ud800b"


@pytest.mark.parametrize("text", STEERING)
def test_what_steers_a_terminal_is_written_out(text: str) -> None:
    shown = visible(text)
    assert shown.startswith("\\")
    assert shown.isprintable()


@given(st.text())
def test_what_is_shown_is_always_printable_and_printable_words_stay(text: str) -> None:
    assert all(each.isprintable() or each.isspace() for each in visible(text))
    words = "".join(each for each in text if each.isprintable())
    assert visible(words) == words


@given(st.text(st.characters(exclude_categories=())))
def test_json_means_the_same_and_steers_nothing(text: str) -> None:
    shown = visible_json(json.dumps({"name": text}, ensure_ascii=False))
    assert json.loads(shown) == {"name": text}
    assert shown.encode()
    assert not set(shown) & set("\x1b\x07\x7f\x9b\u202e\u2066\u2028")
