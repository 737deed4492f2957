"""The application of `pgpu top`: widgets of lines, keys, and the screens behind them.

`Lines` uses Textual's line API: it keeps the lines that the terminal shows, and of each line that differs only the part between the
first and the last differing span is drawn and sent. Changes (stop, resize) run in threads of their own, so the screen never waits for
the ledger or a server.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input

from pgpu.cli.job_arguments import read_resize
from pgpu.cli.output.console import user_name, visible
from pgpu.cli.output.plain_table import PlainTable, cell_width
from pgpu.cli.top import gpu_panel
from pgpu.cli.top.drawing import Line, Span, spread
from pgpu.cli.top.job_table import SORT_ORDERS, facts, is_own, row, rows, titles, widths
from pgpu.cli.top.log_tail import LogTail
from pgpu.cli.top.picture import Picture, PictureReader, PictureThread
from pgpu.cli.top.picture import Span as HistorySpan
from pgpu.client import Client, JobReport
from pgpu.errors import PgpuError, RequestError
from pgpu.palette import DARK
from pgpu.structs import Struct

_MINUTES = (1, 10, 60)
"""Of one column of the history, in turn."""

_NOTE_SECONDS = 6.0
_LOG_SECONDS = 0.5
_CHART_LINES = 6
_LEAST_CHART_HEIGHT = 24
_ENDED = 128 + signal.SIGTERM
_KEYS = (
    ("↑ ↓", "choose a job; also j, k, PgUp, PgDn, Home, End"),
    ("Enter, i", "all that is known of the job"),
    ("l", "its output, as it comes"),
    ("x, Del", "stop it, after a question"),
    ("r", "change its memory or share: 6GiB, 50%, 6GiB 50% or none"),
    ("/", "show only jobs with these words; empty shows all"),
    ("s", "next order; u by use, m by memory asked, a by age, n by name"),
    ("g", "choose the next GPU; its history stands on top from 120 columns on"),
    ("t", "longer history: a column is 1, 10 or 60 minutes"),
    ("q", "quit; Escape leaves a screen"),
    ("", ""),
    (
        "bars",
        "█ used and ▒ reserved by a job, in the colour of its GPU column; ░ free; grey are other users' jobs, red is outside of leases",
    ),
    ("figures", "GiB reserved/all, and GiB used by all processes"),
    ("MEM USED", "used part of the slice since the view was opened"),
    ("TIME GOT", "part of the GPU's time that the job got; · is unknown"),
    ("others' jobs", "read-only; pgpu admin stop ends them"),
)
_FOOT = (
    *(("↵", "info"), ("l", "logs"), ("x", "stop"), ("r", "resize"), ("/", "filter"), ("s", "sort")),
    *(("?", "help"), ("q", "quit")),
)


@lru_cache(maxsize=512)
def _style(colour: str, back: str, is_bold: bool) -> Style:
    return Style(color=colour, bgcolor=back, bold=is_bold)


class Lines(ScrollView):
    """Lines of spans, of which only what differs is sent to the terminal."""

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
            if (old := before.get(number)) != line:
                begin, end = line_difference(old or (), line, self.size.width)
                self.refresh(Region(begin, number - first, end - begin, 1))
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


def line_difference(old: Line, new: Line, width: int) -> tuple[int, int]:
    """Return the first place that differs and the place behind the last one."""
    begin = 0
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        begin += cell_width(after.text)
    if sum(cell_width(span.text) for span in old) != sum(cell_width(span.text) for span in new):
        return min(begin, width - 1), width
    end = sum(cell_width(span.text) for span in new)
    for before, after in zip(reversed(old), reversed(new), strict=False):
        if before != after or end <= begin:
            break
        end -= cell_width(after.text)
    return min(begin, width - 1), max(begin + 1, end)


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
        self.query_one("#foot", Lines).show_all([_foot((("↑↓", "scroll"), ("Esc", "back")))])


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


class Prompt(ModalScreen[str | None]):
    """One line of input at the bottom; Enter returns it, Escape None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, title: str, value: str) -> None:
        super().__init__()
        self._title, self._value = title, value

    def compose(self) -> ComposeResult:
        yield Lines("title")
        yield Input(self._value, compact=True)

    def on_mount(self) -> None:
        self.query_one(Lines).show_all([(Span(visible(self._title), DARK.accent, DARK.card),)])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Target(Struct, frozen=True):
    """Where the jobs are."""

    client: Client
    place: str
    """Name of the machine, or address of the server."""

    uid: int | None
    """The user whose jobs keys may change; None where the server alone knows it."""

    grace_seconds: float
    """Between SIGTERM and SIGKILL of a stop."""


class TopApp(App[int]):
    """The view."""

    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen, ModalScreen {{ background: {DARK.paper}; }}
    #jobs, #text {{ height: 1fr; }}
    Question {{ align: center middle; background: {DARK.paper} 40%; }}
    #question {{ box-sizing: content-box; width: 62; border: round {DARK.accent}; padding: 0 1; background: {DARK.card}; }}
    Prompt {{ align: left bottom; background: {DARK.paper} 0%; }}
    #title, Input {{ background: {DARK.card}; color: {DARK.ink}; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "exit"),
        Binding("ctrl+c", "exit", priority=True),
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1000000)"),
        Binding("end", "move(1000000)"),
        Binding("enter,i", "inspect"),
        Binding("l", "logs"),
        Binding("x,delete", "stop"),
        Binding("r", "resize"),
        Binding("slash", "filter"),
        Binding("escape", "clear_filter"),
        Binding("s", "sort"),
        *(Binding(each.key, f"sort('{each.key}')") for each in SORT_ORDERS if each.key),
        Binding("g", "next_gpu"),
        Binding("t", "history"),
        Binding("question_mark,h", "help"),
    ]

    def __init__(self, target: Target, reader: PictureReader, picture: Picture) -> None:
        """Make the view.

        Args:
            target: Where the jobs are.
            reader: Reads the pictures, in a thread that begins when the view is shown.
            picture: The first one.
        """
        super().__init__()
        self._target, self._reader, self._picture = target, reader, picture
        self._thread: PictureThread | None = None
        self._order, self._pattern = SORT_ORDERS[0], ""
        self._rows: Sequence[JobReport] = ()
        self._cursor, self._chosen_job = 0, ""
        self._gpu, self._minutes = 0, _MINUTES[0]
        self._numbers: dict[str, int] = {}
        self._note: Span | None = None
        self._note_number = 0
        self._logs: dict[str, LogTail] = {}

    def compose(self) -> ComposeResult:
        for name in ("heading", "history", "gpus", "titles"):
            yield Lines(name)
        yield JobLines("jobs", can_focus=True)
        yield Lines("foot")

    def on_mount(self) -> None:
        self.query_one("#jobs", Lines).focus()
        self._thread = PictureThread(self._reader, lambda picture: self.call_later(self.show, picture))
        if self._reader.wanted is not None:  # a history that the first drawing asked for
            self._thread.hurry()
        if self._loop is not None and not self.is_headless:
            self._loop.add_signal_handler(signal.SIGTERM, lambda: self.exit(_ENDED))

    def on_resize(self, _event: events.Resize) -> None:
        self.draw()
        # Lines make themselves for their height, which the layout of this size gives them first.
        self.call_after_refresh(self.draw)

    def show(self, picture: Picture) -> None:
        """Show another picture."""
        if not self.is_headless and not os.isatty(0):
            # A terminal that is not the controlling one sends no SIGHUP when it is closed, and Textual reads its end for ever.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGHUP)
        self._picture = picture
        self.draw()

    def draw(self) -> None:
        """Lay the present picture out anew; what did not change is not sent."""
        picture, (width, height) = self._picture, self.size
        if not width or not self._is_mounted_with_lines():
            return
        self._gpu = min(self._gpu, max(0, len(picture.gpus) - 1))
        notes = f"by {self._order.name}" + (f" · /{self._pattern}" if self._pattern else "")
        self._lines("heading").show_all(gpu_panel.heading(picture, self._target.place, notes, width))
        has_history = width >= gpu_panel.WIDE and height >= _LEAST_CHART_HEIGHT and bool(picture.gpus)
        self._want_history(has_history, width)
        chart = gpu_panel.history(picture, self._gpu, self._minutes, width, _CHART_LINES) if has_history else []
        self._lines("history").show_all(chart)
        colours = self._colours()
        chosen = self._gpu if has_history else None
        panel = gpu_panel.panel(picture, colours, chosen, width, max(4, height // 3))
        self._lines("gpus").show_all(panel[: max(1, height // 2)])
        self._draw_jobs(colours, width)
        self._draw_foot()

    def _is_mounted_with_lines(self) -> bool:
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#foot"))

    def _lines(self, name: str) -> Lines:
        return self.screen_stack[0].query_one(f"#{name}", Lines)

    def _colours(self) -> Mapping[str, str]:
        """Return colours by job id; a job keeps its own, and has the same one on each of its GPUs."""
        live = [report.job for report in self._picture.jobs if not report.job.is_anonymous]
        for job in live:
            self._numbers.setdefault(job.id, len(self._numbers) + 1)
        return {job.id: DARK.slices[self._numbers[job.id] % len(DARK.slices)] for job in live if job.lease is not None}

    def _want_history(self, has_history: bool, width: int) -> None:
        wanted = None
        if has_history:
            uuid = self._picture.gpus[self._gpu].gpu.uuid
            wanted = HistorySpan(uuid, 60.0 * self._minutes * width)
        if wanted != self._reader.wanted:
            self._reader.wanted = wanted
            if self._thread is not None:
                self._thread.hurry()

    def _draw_jobs(self, colours: Mapping[str, str], width: int) -> None:
        picture = self._picture
        self._rows = rows(picture, self._order, self._pattern)
        ids = [report.job.id for report in self._rows]
        # The mark stays on its job while others come and go; of other users' jobs all ids are equal.
        if self._chosen_job in ids and ids.count(self._chosen_job) == 1:
            self._cursor = ids.index(self._chosen_job)
        self._cursor = max(0, min(self._cursor, len(ids) - 1))
        self._chosen_job = ids[self._cursor] if ids else ""
        columns = widths(picture, width)
        self._lines("titles").show_all([titles(columns)])
        jobs = self._lines("jobs")
        jobs.show(
            len(self._rows),
            lambda number: row(
                self._rows[number],
                picture,
                columns,
                colours.get(self._rows[number].job.id),
                is_selected=number == self._cursor,
            ),
        )
        first, height = jobs.scroll_offset.y, jobs.size.height
        if height and not first <= self._cursor < first + height:
            jobs.scroll_to(y=self._cursor if self._cursor < first else self._cursor - height + 1, animate=False)

    def _draw_foot(self) -> None:
        jobs = self._lines("jobs")
        first, last = jobs.scroll_offset.y + 1, min(len(self._rows), jobs.scroll_offset.y + jobs.size.height)
        place = Span(f"{first}–{last} of {len(self._rows)}" if len(self._rows) > jobs.size.height else "", DARK.muted)
        left = [self._note] if self._note is not None else _foot(_FOOT)
        self._lines("foot").show_all([spread(left, [place], self.size.width)])

    def note(self, words: str, *, is_bad: bool = False) -> None:
        """Show a message in the last line for some seconds."""
        self._note = Span(visible(words), DARK.bad if is_bad else DARK.good)
        self._note_number += 1
        self.set_timer(_NOTE_SECONDS, lambda number=self._note_number: self._clear_note(number))
        self._draw_foot()

    def _clear_note(self, number: int) -> None:
        if number == self._note_number:
            self._note = None
            self._draw_foot()

    def _chosen(self) -> JobReport | None:
        return self._rows[self._cursor] if self._rows else None

    def _own(self, what: str) -> JobReport | None:
        """Return the chosen job if keys may change it; else show why they may not."""
        report = self._chosen()
        if report is not None and not is_own(report.job, self._target.uid):
            self.note(f"another user's job is read-only: it cannot be {what} here", is_bad=True)
            return None
        return report

    def _start(self, change: Callable[[], str]) -> None:
        """Make a change in a thread, and show what it returns or the error."""

        def run() -> None:
            try:
                words, is_bad = change(), False
            except PgpuError as exc:
                words, is_bad = " ".join(f"{exc}{f' ({exc.hint})' if exc.hint else ''}".split()), True
            self.call_later(self.note, words, is_bad=is_bad)
            if self._thread is not None:
                self._thread.hurry()

        threading.Thread(target=run, daemon=True).start()

    def action_exit(self) -> None:
        """End the view."""
        self.exit(0)

    def action_move(self, count: int) -> None:
        """Choose another job."""
        self._cursor = max(0, min(self._cursor + count, len(self._rows) - 1))
        self._chosen_job = self._rows[self._cursor].job.id if self._rows else ""
        self.draw()

    def action_page(self, count: int) -> None:
        """Choose the job a page away."""
        self.action_move(count * max(1, self._lines("jobs").size.height - 1))

    def action_sort(self, key: str = "") -> None:
        """Use the order of a key, or the next one."""
        place = next((at for at, each in enumerate(SORT_ORDERS) if key and each.key == key), None)
        following = (SORT_ORDERS.index(self._order) + 1) % len(SORT_ORDERS)
        self._order = SORT_ORDERS[following if place is None else place]
        self.draw()

    def action_filter(self) -> None:
        """Read words, and show the jobs that have them."""

        def use(words: str | None) -> None:
            if words is not None:
                self._pattern = words.strip()
                self.draw()

        self.push_screen(
            Prompt("Show jobs with these words; Enter, or Escape to leave it as it is", self._pattern), use
        )

    def action_clear_filter(self) -> None:
        """Show all jobs."""
        self._pattern = ""
        self.draw()

    def action_next_gpu(self) -> None:
        """Choose the next GPU."""
        self._gpu = (self._gpu + 1) % max(1, len(self._picture.gpus))
        self.draw()

    def action_history(self) -> None:
        """Show a longer period, or the shortest one again."""
        self._minutes = _MINUTES[(_MINUTES.index(self._minutes) + 1) % len(_MINUTES)]
        self.draw()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TextScreen("pgpu top: keys", lambda width: _table(_KEYS, width)))

    def action_inspect(self) -> None:
        """Show all that is known of the chosen job."""
        report = self._chosen()
        if report is not None:
            picture = self._picture
            self.push_screen(TextScreen(f"Job {report.job.id}", lambda width: _table(facts(report, picture), width)))

    def action_logs(self) -> None:
        """Show the output of the chosen job, and what follows."""
        report = self._chosen()
        if report is None:
            return
        if report.job.is_anonymous:
            self.note("another user's output is not shown", is_bad=True)
            return
        job_id = report.job.id
        if job_id not in self._logs:
            self._logs[job_id] = LogTail(self._target.client, job_id)
        title = f"Output of job {job_id} {report.job.spec.name or ''}".rstrip()
        self.push_screen(TextScreen(title, self._logs[job_id].lines, follows=True))

    def action_stop(self) -> None:
        """Stop the chosen job after a question."""
        report = self._own("stopped")
        if report is None:
            return
        job, target = report.job, self._target

        def use(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self._start(
                    lambda: f"job {target.client.request_stop(job.id, target.grace_seconds).id} is being stopped"
                )

        named = f"{job.id} {job.spec.name or ''}".rstrip()
        end = f"It gets SIGTERM, and SIGKILL after {target.grace_seconds:g} s." if job.lease else "It waits."
        self.push_screen(Question((f"Stop job {named} of {user_name(job.owner_uid)}?", end)), use)

    def action_resize(self) -> None:
        """Read a new size or share for the chosen job, and change it."""
        report = self._own("resized")
        if report is None:
            return
        job_id = report.job.id

        def use(words: str | None) -> None:
            if words:
                self._start(lambda: f"job {_resize(self._target.client, job_id, words)} was resized")

        self.push_screen(Prompt(f"New memory or share of job {job_id}: 6GiB, 50%, 6GiB 50%, none", ""), use)

    def _fatal_error(self) -> None:
        # The command line writes one line and a file with details, in place of a traceback; see `watch`.
        self._close_messages_no_wait()

    def raise_error(self) -> None:
        """Raise the exception that ended the view, if one did."""
        if self._exception is not None:
            raise self._exception


def _resize(client: Client, job_id: str, words: str) -> str:
    """Change a job as words describe it; returns its id."""
    parts = words.split()
    shares = [each for each in parts if each.endswith("%") or each == "none"]
    sizes = [each for each in parts if each not in shares]
    if len(shares) > 1 or len(sizes) > 1:
        raise RequestError("that is more than a size and a share", hint="write 6GiB, 50%, or 6GiB 50%")
    change = read_resize(*(each[0] if each else None for each in (sizes, shares)), is_strict=None)
    return client.resize(job_id, change.memory_bytes, compute_share=change.compute_share).id


def _table(rows_: Sequence[tuple[str, str]], width: int) -> list[str]:
    table = PlainTable(has_header=False)
    for name, text in rows_:
        table.add_row(name, text)
    return list(table.lines(width))


def _foot(keys: Sequence[tuple[str, str]]) -> Line:
    return tuple(
        span for key, word in keys for span in (Span(key, DARK.warning, is_bold=True), Span(f" {word}  ", DARK.muted))
    )


def watch(target: Target) -> int:
    """Show the view until `q`, and return the exit code.

    Raises:
        PgpuError: The first reading failed.
    """
    reader = PictureReader(target.client)
    app = TopApp(target, reader, reader.read())
    code = app.run()
    app.raise_error()
    return code or 0
