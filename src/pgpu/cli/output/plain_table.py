"""Tables without lines, laid out and coloured without rich, whose layout takes a millisecond for each row.

Cells are plain text: markup and control characters in them are shown, never interpreted. A pipe gets one line for each row,
however long. On a terminal a `PlainTable` narrows its widest columns until a row fits, and their cells continue on further
lines; a `FittedTable` keeps each row on one line: it leaves out columns of a low rank and cuts cells with `…`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from pgpu.cli.output.console import visible
from pgpu.structs import Struct, replace

_GAP = "  "
_RESET = "\x1b[0m"
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Parameters of the escape sequence Select Graphic Rendition."""

_COMBINING = {"Mn", "Me"}
_WIDE = {"W", "F"}
_SHORT_ID = 8
DETAIL = 50
"""Columns of lower ranks are details."""

NEVER_DROPPED = 100
"""The rank of columns that stay, however narrow the terminal is."""

_WORD = re.compile(r"\s*\S+\s*")


class Styled(Struct, frozen=True):
    """A cell with a style, shown on terminals with colours."""

    text: str
    style: str


class PlainTable:
    """Rows of cells under titles."""

    def __init__(
        self,
        *columns: str,
        heading: str | None = None,
        no_wrap: Collection[str] = (),
        is_numeric: bool = False,
        has_header: bool = True,
    ) -> None:
        """Make the columns.

        Args:
            columns: Titles.
            heading: A line above the titles.
            no_wrap: Titles of the columns with cells on one line each.
            is_numeric: Whether all columns but the first are numbers: right-aligned, on one line.
            has_header: Whether the titles are shown; without them the first row sets the number of columns.
        """
        self.columns = columns
        self.heading = heading
        self.rows: list[tuple[str | Styled, ...]] = []
        self._has_header = has_header
        self._is_right = [is_numeric and number > 0 for number in range(len(columns))]
        self._may_wrap = [
            not is_right and title not in no_wrap for is_right, title in zip(self._is_right, columns, strict=True)
        ]

    def add_row(self, *cells: str | Styled) -> None:
        """Add a row, with a cell for each column."""
        self.rows.append(cells)

    def lines(self, width: int | None = None, *, has_colours: bool = False) -> Iterator[str]:
        """Lay the table out.

        Args:
            width: Of the terminal, in characters; None for as wide as the cells.
            has_colours: Whether styles are shown.
        """
        if self.heading is not None:
            yield visible(self.heading)
        header = [tuple(Styled(title, "bold") for title in self.columns)] if self._has_header else []
        rows = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in (*header, *self.rows)]
        columns = list(zip_longest(*rows, fillvalue=""))
        is_right = self._is_right or [False] * len(columns)
        if width is None and not has_colours and all(map(_is_plain, map("".join, columns))):
            # In a pipe nothing is folded or coloured. Plain text needs no measuring: a tenth of the cost of the way below.
            padded = []
            for column, right in zip(columns, is_right, strict=True):
                pad, most = str.rjust if right else str.ljust, max(1, *map(len, column))
                padded.append([pad(cell, most) for cell in column])
            yield from map(_GAP.join, zip(*padded, strict=True))
            return
        rows = [list(map(visible, row)) for row in rows]
        widths = [max(1, *map(cell_width, column)) for column in zip_longest(*rows, fillvalue="")]
        if width is not None:
            may_wrap = self._may_wrap or [True] * len(columns)
            widths = _narrowed(widths, may_wrap, width - len(_GAP) * (len(columns) - 1))
        for row, styled in zip(rows, (*header, *self.rows), strict=True):
            styles = [_STYLES.get(cell.style) if has_colours and isinstance(cell, Styled) else None for cell in styled]
            for parts in zip_longest(*map(_folded, row, widths), fillvalue=""):
                yield _GAP.join(map(_padded, parts, widths, is_right, styles))


class Column(Struct, frozen=True):
    """A column of a `FittedTable`."""

    title: str
    """Its first word is the name of the field in `--format` and `--filter`."""

    rank: int
    """Where a row does not fit, the column of the lowest rank is left out first."""

    least: int = 0
    """Cells of the terminal to which it may be cut; 0 if it is never cut."""

    is_always: bool = False
    """Whether it is shown although all its cells are empty."""

    is_id: bool = False
    """Whether terminals show only as many characters as tell the rows apart, `_SHORT_ID` at least."""

    @property
    def field(self) -> str:
        """Name in `--format` and `--filter`, in lower case."""
        return self.title.partition(" ")[0].lower()


class FittedTable(PlainTable):
    """Rows of one line each, as wide as the terminal at most."""

    def __init__(self, columns: Sequence[Column], *, heading: str | None = None, is_uncut: bool = False) -> None:
        """Make the columns.

        Args:
            columns: From left to right.
            heading: A line above the titles.
            is_uncut: Whether terminals get whole rows, too.
        """
        super().__init__(*(column.title for column in columns), heading=heading)
        self.fields = columns
        self._is_uncut = is_uncut

    def texts(self, row: int) -> list[str]:
        """Return the cells of a row as they were given, of all columns."""
        return [cell if isinstance(cell, str) else cell.text for cell in self.rows[row]]

    def lines(self, width: int | None = None, *, has_colours: bool = False) -> Iterator[str]:
        """Lay the table out; see `PlainTable.lines`."""
        most = None if self._is_uncut else width
        texts = [[visible(text) for text in self.texts(row)] for row in range(len(self.rows))]
        columns = {
            column: [texts_of[place] for texts_of in texts]
            for place, column in enumerate(self.fields)
            if column.is_always or any(texts_of[place] for texts_of in texts)
        }
        if most is not None:
            columns = _fitted(
                {each: _short_ids(cells) if each.is_id else cells for each, cells in columns.items()}, most
            )
        table = PlainTable(*(column.title for column in columns), heading=self.heading)
        places = [self.fields.index(column) for column in columns]
        for row, cells in zip(self.rows, zip(*columns.values(), strict=True), strict=True):
            styled = (row[place] for place in places)
            table.add_row(
                *(
                    replace(old, text=new) if isinstance(old, Styled) else new
                    for old, new in zip(styled, cells, strict=True)
                )
            )
        for line in table.lines(has_colours=has_colours):
            yield line.rstrip()


def _short_ids(ids: Sequence[str]) -> list[str]:
    count = next((n for n in range(_SHORT_ID, 64) if len({each[:n] for each in ids}) == len(set(ids))), 64)
    return [each[:count] for each in ids]


def _fitted(columns: Mapping[Column, list[str]], width: int) -> dict[Column, list[str]]:
    """Leave out and cut columns until rows are no wider than the terminal, if that is possible."""
    natural = {column: max(map(cell_width, (column.title, *cells))) for column, cells in columns.items()}

    def excess(widths: Mapping[Column, int]) -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    # Details are shown only where more important columns keep twice their least width.
    for times, rank in ((2, DETAIL), (1, NEVER_DROPPED)):
        least = {column: min(most, times * column.least or most) for column, most in natural.items()}
        while excess(least) > 0 and (optional := [column for column in least if column.rank < rank]):
            column = min(optional, key=lambda column: column.rank)
            del least[column], natural[column]
    widths = dict(natural)
    while excess(widths) > 0 and (cuttable := [column for column in widths if widths[column] > least[column]]):
        widths[max(cuttable, key=widths.__getitem__)] -= 1
    return {column: [cut(cell, widths[column]) for cell in columns[column]] for column in widths}


def cut(text: str, width: int) -> str:
    """Return a text that takes at most some places of a terminal, one cut off ends with `…`."""
    if cell_width(text) <= width:
        return text
    end = next((end for end in range(len(text), 0, -1) if cell_width(text[:end]) < width), 0)
    return f"{text[:end].rstrip()}…"


def _is_plain(text: str) -> bool:
    return text.isprintable() and _is_narrow(text)


def _is_narrow(text: str) -> bool:
    """Whether each character takes one place: ASCII, and the mark of a command that was cut."""
    return text.isascii() or text.replace("…", "").isascii()


def cell_width(text: str) -> int:
    """Return the width of a text on a terminal: characters of East Asia and emoji take two places, combining ones none."""
    if _is_narrow(text):
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(each) in _COMBINING or _is_conjoining(each) else 2 if east_asian_width(each) in _WIDE else 1
        for each in text
    )


def _is_conjoining(letter: str) -> bool:
    """Whether it is a vowel or a final of Hangul, which terminals draw into the cells of the consonant before it."""
    return "\u1160" <= letter <= "\u11ff" or "\ud7b0" <= letter <= "\ud7fb"


def _narrowed(widths: Sequence[int], may_wrap: Sequence[bool], most: int) -> list[int]:
    """Return the widths of columns that are as wide as `most` together: of those that may wrap, the widest become narrower.

    Columns that may not wrap keep their width, even if the row is too long then.
    """
    found = list(widths)
    while (excess := sum(found) - most) > 0:
        wrappable = [place for place, may in enumerate(may_wrap) if may and found[place] > 1]
        if not wrappable:
            break
        widest = max(found[place] for place in wrappable)
        among = [place for place in wrappable if found[place] == widest]
        next_widest = max((found[place] for place in wrappable if found[place] < widest), default=1)
        step = max(1, min(widest - next_widest, excess // len(among)))
        for place in among[:excess]:
            found[place] -= step
    return found


def _folded(text: str, width: int) -> list[str]:
    """Return a cell in lines of at most a width: broken between words, and inside of a word that is longer than a line."""
    if cell_width(text) <= width:
        return [text]
    lines, line = [], ""
    for word in _WORD.findall(text):
        if cell_width(line) + cell_width(word.rstrip()) <= width:
            line += word
            continue
        if line:
            lines.append(line.rstrip())
        rest = word
        while cell_width(rest.rstrip()) > width:
            # At least one character, or a column of one place would never end in front of one that takes two.
            count = next((end for end in range(len(rest), 1, -1) if cell_width(rest[:end]) <= width), 1)
            lines.append(rest[:count])
            rest = rest[count:]
        line = rest
    return [*lines, line.rstrip()]


def _padded(text: str, width: int, is_right: bool, style: int | None) -> str:
    padding = " " * (width - cell_width(text))
    shown = text if style is None else f"\x1b[{style}m{text}{_RESET}"
    return padding + shown if is_right else shown + padding
