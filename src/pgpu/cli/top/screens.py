"""The widget that the view is made of, and the screens that stand before it: texts and questions."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pgpu.cli.output.console import visible
from pgpu.cli.output.plain_table import PlainTable
from pgpu.cli.top.drawing import Line, Span, key_hints
from pgpu.palette import DARK

_LOG_SECONDS = 0.5


@lru_cache(maxsize=512)
def _style(colour: str, back: str, is_bold: bool) -> Style:
    return Style(color=colour, bgcolor=back, bold=is_bold)


class Lines(ScrollView):
    """Lines of spans, of which only those that differ are drawn, by Textual's line API."""

    DEFAULT_CSS = "Lines { height: 1; overflow-x: hidden; scrollbar-size: 0 0; }"

    def __init__(self, id: str | None = None, *, can_focus: bool = False) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, can_focus=can_focus)
        self._line_of: Callable[[int], Line] = lambda _number: ()
        self._shown: dict[int, Line] = {}

    def show(self, count: int, line_of: Callable[[int], Line]) -> None:
        """Show other lines.

        Args:
            count: How many there are.
            line_of: Makes the line of a number, 0 to count - 1; called for lines in sight only.
        """
        self._line_of = line_of
        if self.virtual_size.height != count:
            self.virtual_size = Size(self.size.width, count)
        first = self.scroll_offset.y
        before, self._shown = self._shown, {}
        for number in range(first, first + self.size.height):
            line = line_of(number) if number < count else ()
            if before.get(number) != line:
                self.refresh(Region(0, number - first, self.size.width, 1))
            self._shown[number] = line

    def show_all(self, lines: Sequence[Line]) -> None:
        """Show lines that were made already, as high as they are."""
        self.styles.height = len(lines)
        self.show(len(lines), lines.__getitem__)

    def render_line(self, y: int) -> Strip:
        """Return one line of the terminal."""
        number = y + self.scroll_offset.y
        if number not in self._shown:
            self._shown[number] = self._line_of(number) if number < self.virtual_size.height else ()
        segments = [
            Segment(span.text, _style(span.colour, span.back, span.is_bold))
            for span in self._shown[number]
            if span.text
        ]
        return Strip(segments).adjust_cell_length(self.size.width, _style(DARK.ink, DARK.paper, False))


class JobLines(Lines, inherit_bindings=False):
    """The jobs: keys that scroll lines move the mark here."""


class TextScreen(ModalScreen[None]):
    """Text over the whole terminal, to read and leave."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,i,l,question_mark", "dismiss", "back")]
    AUTO_FOCUS = "#text"

    def __init__(self, title: str, text: Callable[[int], Sequence[str]], *, follows: bool = False) -> None:
        """Make the screen.

        Args:
            title: In the first line.
            text: Returns the lines for a width, without characters that steer a terminal.
            follows: Whether it is read again and again, and stays at its end.
        """
        super().__init__()
        self._title, self._text, self._follows = title, text, follows

    def compose(self) -> ComposeResult:
        yield Lines("heading")
        yield Lines("text", can_focus=True)
        yield Lines("foot")

    def on_mount(self) -> None:
        if self._follows:
            self.set_interval(_LOG_SECONDS, self.draw)

    def on_resize(self, _event: events.Resize) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show the text as it is now."""
        lines = self._text(self.size.width)
        body = self.query_one("#text", Lines)
        is_at_end = body.scroll_offset.y >= body.virtual_size.height - body.size.height
        body.show(len(lines), lambda number: (Span(lines[number]),))
        if self._follows and is_at_end:
            body.scroll_end(animate=False, immediate=True)
        self.query_one("#heading", Lines).show_all([(Span(visible(self._title), is_bold=True),)])
        self.query_one("#foot", Lines).show_all([key_hints((("↑↓", "scroll"), ("Esc", "back")))])


class Question(ModalScreen[bool]):
    """A question that `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        yield Lines("question")

    def on_mount(self) -> None:
        table = PlainTable(has_header=False)
        for each in (*self._words, "", "y yes   n no"):
            table.add_row(each)
        self.query_one(Lines).show_all([(Span(line, back=DARK.card),) for line in table.lines(60)])
