"""One line of input in the last line of the view.

The application itself gives it every key while it is open. A widget of its own would be mounted and focused some time after the key
that opened it, and keys that the terminal sent in the same piece would be taken for others before.
"""

from collections.abc import Callable

from pgpu.cli.output.console import visible
from pgpu.cli.output.plain_table import cell_width
from pgpu.cli.top.drawing import Line, Span, key_hints, line_width, spread
from pgpu.palette import DARK

_HINTS = key_hints((("↵", "use"), ("Esc", "leave")))


class TextEntry:
    """A line that is being written, at its end."""

    def __init__(self, title: str, text: str, use: Callable[[str], object]) -> None:
        """Open it.

        Args:
            title: What it is for.
            text: What it begins with.
            use: Called with the text at Enter; not called at Escape.
        """
        self._title, self._text, self._use = title, text, use

    def press(self, key: str, character: str | None) -> bool:
        """Take a key by Textual's name and its character; True where the line is still open."""
        if key in {"enter", "ctrl+j"}:
            self._use(self._text)
        if key in {"enter", "ctrl+j", "escape"}:
            return False
        if key in {"backspace", "ctrl+h"}:
            self._text = self._text[:-1]
        elif key == "ctrl+u":
            self._text = ""
        elif key == "ctrl+w":
            self._text = self._text.rstrip().rpartition(" ")[0]
        elif character is not None and character.isprintable():
            self._text += character
        return True

    def paste(self, text: str) -> None:
        """Take the first line of a text."""
        # Terminals send the ends of lines as \r.
        self._text += next(iter(text.splitlines()), "").strip()

    def line(self, width: int) -> Line:
        """Lay it out; of a long text the end is shown."""
        left = [Span(self._title, DARK.accent, is_bold=True), Span(" ", back=DARK.ink)]
        shown = visible(self._text)
        while shown and line_width((*left, *_HINTS)) + cell_width(shown) >= width:
            shown = shown[1:]
        return spread((left[0], Span(shown), left[1]), _HINTS, width)
