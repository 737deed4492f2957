"""Tables are laid out as rich lays them out, at a fraction of its cost."""

import io
import re
import string
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgpu.cli.output.plain_table import PlainTable, Styled

CELLS = st.text(f"{string.ascii_letters}  \u6f22[]", max_size=30).map(str.strip)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5)
TITLES = ("ONE", "SECOND", "OF THREE")


def plain(rows: Sequence[tuple[str, ...]], *, is_numeric: bool = False) -> PlainTable:
    table = PlainTable(*TITLES, no_wrap=("ONE",), is_numeric=is_numeric)
    for row in rows:
        table.add_row(*row)
    return table


def by_rich(rows: Sequence[tuple[str, ...]], width: int, *, is_numeric: bool) -> list[str]:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(TITLES):
        is_right = is_numeric and number > 0
        table.add_column(
            title, overflow="fold", no_wrap=is_right or title == "ONE", justify="right" if is_right else "left"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    text = io.StringIO()
    Console(file=text, width=width).print(table)
    return text.getvalue().splitlines()


@given(ROWS, st.booleans())
def test_a_table_that_fits_is_laid_out_as_by_rich(rows: list[tuple[str, ...]], is_numeric: bool) -> None:
    table = plain(rows, is_numeric=is_numeric)
    assert list(table.lines()) == list(table.lines(500)) == by_rich(rows, 500, is_numeric=is_numeric)


@given(ROWS, st.integers(60, 120))
def test_a_narrow_terminal_loses_no_word_and_no_line_is_wider(rows: list[tuple[str, ...]], width: int) -> None:
    lines = list(plain(rows).lines(width))
    assert all(Text(line).cell_len <= width for line in lines)
    letters = sorted(letter for row in (TITLES, *rows) for cell in row for letter in cell if letter != " ")
    assert sorted(letter for line in lines for letter in line if letter != " ") == letters


def test_a_long_cell_is_broken_between_words_and_a_long_word_inside() -> None:
    table = PlainTable("A", "B")
    table.add_row("one", "two three abcdefghijklmno")
    assert [line.rstrip() for line in table.lines(14)] == ["A    B", "one  two three", "     abcdefghi", "     jklmno"]


def test_a_pipe_gets_one_line_for_each_row_however_long() -> None:
    lines = list(plain([("a", "b " * 500, "c")]).lines())
    assert len(lines) == 2


def test_styles_are_shown_only_where_there_are_colours() -> None:
    table = PlainTable("STATE", "OTHER")
    table.add_row(Styled("red", "red"), "none")
    (header, row) = table.lines(80, has_colours=True)
    assert header == "\x1b[1mSTATE\x1b[0m  \x1b[1mOTHER\x1b[0m"
    assert row == "\x1b[31mred\x1b[0m    none "
    assert not any(re.search("\x1b", line) for line in table.lines(80))


def test_a_cell_steers_no_terminal() -> None:
    table = PlainTable("A")
    table.add_row("\x1b[31m\n")
    assert list(table.lines())[1] == "\\x1b[31m\\n"
