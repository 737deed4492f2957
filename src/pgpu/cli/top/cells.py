"""The cells that the terminal shows; of an update only those that differ are sent.

Textual sends a line that changed from its first column on, and each span with all its colours. Here every cell is compared with what
was sent before: the cursor moves to each run of cells that differ, and a colour is sent where it differs from that of the cell sent
last. Moves are absolute, so a terminal that takes a character for wider or narrower is wrong in that run alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

from pgpu.cli.output.plain_table import cell_width

_Look = tuple[str | None, str | None, str]
"""Parameters of SGR: attributes, colour, background. The first two are None of a blank, which shows neither."""

_Cell = tuple[str, _Look]
"""A character with what combines with it; the second place of a wide one is empty."""

_Pieces = Iterable[tuple[int, Strip]]
"""Parts of a line from a column on."""

_PLAIN = ("", "39", "49")
_NO_STYLE = Style()


class ShownCells:
    """What was sent to a terminal."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, _Cell]] = {}
        """Cells by line and column; what is missing is unknown."""

        self._size: Size | None = None

    def forget(self) -> None:
        """Take all cells for unknown."""
        self._lines.clear()

    def resize(self, size: Size) -> None:
        """Note the size of the terminal; after a change of it all cells are unknown."""
        if size != self._size:
            self.forget()
        self._size = size

    def show(self, lines: Iterable[tuple[int, _Pieces]], system: ColorSystem) -> str:
        """Return the sequences that change the terminal to some lines, each with its number from 0 on."""
        parts: list[str] = []
        look = _PLAIN  # as each update leaves it
        for y, pieces in lines:
            line, behind = self._lines.setdefault(y, {}), -1
            for x, cell in _cells(pieces, system):
                text, wanted = cell
                if not text:
                    behind += behind == x
                elif line.get(x) != cell:
                    if behind != x:
                        parts.append(f"\x1b[{y + 1};{x + 1}H" if behind < 0 else f"\x1b[{x + 1}G")
                    following = (
                        look[0] if wanted[0] is None else wanted[0],
                        look[1] if wanted[1] is None else wanted[1],
                        wanted[2],
                    )
                    parts += (_change(look, following), text)
                    look, behind = following, x + 1
                line[x] = cell
        if look != _PLAIN:
            parts.append("\x1b[0m")
        return "".join(parts)


class CellUpdate(CompositorUpdate):
    """An update of Textual's compositor, of which only the cells that differ are sent."""

    def __init__(self, update: ChopsUpdate | LayoutUpdate, shown: ShownCells) -> None:
        self._update, self._shown = update, shown

    def render_segments(self, console: Console) -> str:
        if isinstance(self._update, LayoutUpdate):
            self._shown.resize(self._update.region.size)
        return self._shown.show(_lines(self._update), console._color_system or ColorSystem.TRUECOLOR)  # noqa: SLF001 - as Textual does


def _lines(update: ChopsUpdate | LayoutUpdate) -> Iterator[tuple[int, _Pieces]]:
    if isinstance(update, ChopsUpdate):
        for y in sorted({y for y, _, _ in update.spans}):
            yield y, ((x, strip) for x, strip in update.chops[y].items() if strip is not None)
        return
    for y, strips in enumerate(update.strips, update.region.y):
        yield y, [(update.region.x, Strip.join(strips))]


def _cells(pieces: _Pieces, system: ColorSystem) -> Iterator[tuple[int, _Cell]]:
    """Yield cells with their columns; characters that combine are part of the cell before."""
    for x, strip in pieces:
        column = x
        for text, style, _ in strip:
            look = _look(style or _NO_STYLE, system)
            blank = (None, None, look[2]) if look[0] in {"", "1"} else look
            for cluster, width in _clusters(text):
                if not width:  # sent alone, it would combine with the cell before once more at each draw
                    continue
                yield column, (cluster, blank if cluster == " " else look)
                if width > 1:
                    yield column + 1, ("", look)
                column += width


@lru_cache(maxsize=4096)
def _clusters(text: str) -> Sequence[tuple[str, int]]:
    """Split a text into characters, each with those that combine with it and with its width."""
    begins = [place for place, each in enumerate(text) if place == 0 or cell_width(each)]
    clusters = [text[begin:end] for begin, end in pairwise((*begins, len(text)))]
    return [(cluster, cell_width(cluster)) for cluster in clusters]


@lru_cache(maxsize=1024)
def _look(style: Style, system: ColorSystem) -> tuple[str, str, str]:
    colour, back = (
        ";".join(each.downgrade(system).get_ansi_codes(is_front)) if each is not None else default
        for each, is_front, default in ((style.color, True, "39"), (style.bgcolor, False, "49"))
    )
    return Strip.render_ansi(style.without_color, system), colour, back


def _change(before: tuple[str, str, str], after: tuple[str, str, str]) -> str:
    if before == after:
        return ""
    if before[0] != after[0]:  # no attribute can be left out of those that are on
        return f"\x1b[{';'.join(('0', *filter(None, after)))}m"
    return f"\x1b[{';'.join(code for old, code in zip(before, after, strict=True) if old != code)}m"
