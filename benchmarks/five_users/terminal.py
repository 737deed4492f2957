"""A program on a terminal of tmux, whose screen is read as text and as a picture.

Each screen has a tmux server of its own, so the program talks to a real terminal that answers queries, and its sequences are interpreted
by tmux. The picture is an SVG of text in the reader's own monospaced font: it loads nothing.
"""

import io
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Self

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from pgpu.palette import DARK

_CELL, _LINE, _MARGIN = 8.4, 18, 12
"""Width and height of a place of the terminal, and the space around all of them, in the SVG's units."""

NBSP = "\N{NO-BREAK SPACE}"
"""In place of spaces, which SVG collapses."""

_STYLE = "font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


_NAMED = (DARK.paper, DARK.bad, DARK.good, DARK.warning, DARK.accent, DARK.slices[3], DARK.accent, DARK.ink)
"""The eight colours of a terminal, which tables name by their numbers."""

_THEME = TerminalTheme(_channels(DARK.paper), _channels(DARK.ink), [_channels(each) for each in _NAMED])


class TerminalScreen:
    """One program on one terminal."""

    def __init__(
        self, directory: Path, columns: int, lines: int, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start the program.

        Args:
            directory: Of the socket of tmux; short, and only this user's.
            columns: Of the terminal.
            lines: Of the terminal.
            words: Of the program.
            environment: Of tmux, which adds the terminal's variables.
        """
        self.columns = columns
        self._socket = directory / f"{columns}x{lines}.{os.urandom(4).hex()}"
        self._environment = {**environment, "LC_ALL": "C.UTF-8", "COLORTERM": "truecolor"}
        options = ("status off", "remain-on-exit on", "default-terminal tmux-256color")
        settings = [word for option in options for word in ("set", "-g", *option.split(), ";")]
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("start-server", ";", *settings, "new-session", "-d", *size, shlex.join(words))

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-u", "-S", self._socket, "-f", "/dev/null", *words],
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def lines(self) -> list[str]:
        """Return the lines of the screen, without spaces at their ends."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p").splitlines()]

    def picture(self, title: str) -> str:
        """Return the screen as SVG, with a title for those who cannot see it."""
        text = Text.from_ansi(self._tmux("capture-pane", "-p", "-e", "-N").rstrip("\n"))
        console = Console(width=self.columns, file=io.StringIO(), color_system="truecolor", force_terminal=True)
        drawn = [*_drawn(console.render_lines(text, pad=False))]
        while drawn and not drawn[-1]:
            drawn.pop()
        width, height = self.columns * _CELL + 2 * _MARGIN, len(drawn) * _LINE + 2 * _MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">\n'
            f"<title>{escape(title)}</title>\n"
            f'<rect width="100%" height="100%" rx="8" fill="{DARK.paper}"/>\n<g style="{_STYLE}">\n'
            + "".join(f"{line}\n" for line in drawn)
            + "</g>\n</svg>\n"
        )


def _drawn(lines: Sequence[Sequence[Segment]]) -> Iterator[str]:
    """Yield the elements of each line, from the top."""
    for number, segments in enumerate(lines):
        top, place, elements = _MARGIN + number * _LINE, 0, []
        for text, style, _ in segments:
            left, cells = _MARGIN + place * _CELL, cell_len(text)
            place += cells
            fore, back = (None, None) if style is None else (style.color, style.bgcolor)
            if style is not None and style.reverse:
                fore, back = back, fore
            ground = _hex(back, is_foreground=False)
            if ground != DARK.paper:
                elements.append(
                    f'<rect x="{left:g}" y="{top}" width="{cells * _CELL:g}" height="{_LINE}" fill="{ground}"/>'
                )
            how = f'fill="{_hex(fore)}"' + (' font-weight="bold"' if style is not None and style.bold else "")
            # The length holds the letters of any font to their places: those of one place and those of two apart.
            for size, letters in groupby(text, cell_len):
                run = "".join(letters)
                length = len(run) * size * _CELL
                if run.strip():
                    elements.append(
                        f'<text x="{left:g}" y="{top + 14}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs" {how}>'
                        f"{escape(run, quote=False).replace(' ', NBSP)}</text>"
                    )
                left += length
        yield "".join(elements)


def _hex(colour: Color | None, *, is_foreground: bool = True) -> str:
    default = DARK.ink if is_foreground else DARK.paper
    return default if colour is None or colour.is_default else colour.get_truecolor(_THEME, is_foreground).hex
