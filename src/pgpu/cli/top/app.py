"""The application of `pgpu top`: it lays the picture out on the main screen, and gives keys their meaning.

Changes (stop, resize) run in threads of their own, so the screen never waits for the ledger or a server. Of what it draws only the cells
that differ are sent (`cells`). While a line of input is open (`text_entry`), it gets every key.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from pgpu.cli.output.console import user_name, visible
from pgpu.cli.output.plain_table import PlainTable
from pgpu.cli.top import gpu_panel
from pgpu.cli.top.cells import CellUpdate, ShownCells
from pgpu.cli.top.drawing import Span, key_hints, spread
from pgpu.cli.top.job_list import JobList
from pgpu.cli.top.job_table import SORT_ORDERS, facts, row, titles, widths
from pgpu.cli.top.log_tail import LogTail
from pgpu.cli.top.picture import Picture, PictureReader, PictureThread
from pgpu.cli.top.picture import Span as HistorySpan
from pgpu.cli.top.screens import JobLines, Lines, Question, TextScreen
from pgpu.cli.top.target import Target
from pgpu.cli.top.text_entry import TextEntry
from pgpu.client import JobReport
from pgpu.errors import PgpuError
from pgpu.palette import DARK

_MINUTES = (1, 10, 60)
"""Of one column of the history, in turn."""

_NOTE_SECONDS = 6.0
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
    ("Ctrl-L", "draw everything anew"),
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
_FOOT = key_hints(
    (
        *(("↵", "info"), ("l", "logs"), ("x", "stop"), ("r", "resize"), ("/", "filter"), ("s", "sort")),
        *(("?", "help"), ("q", "quit")),
    )
)


class TopApp(App[int]):
    """The view."""

    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen, ModalScreen {{ background: {DARK.paper}; }}
    #jobs, #text {{ height: 1fr; }}
    Question {{ align: center middle; background: {DARK.paper} 40%; }}
    #question {{ box-sizing: content-box; width: 62; border: round {DARK.accent}; padding: 0 1; background: {DARK.card}; }}
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
        Binding("ctrl+l", "redraw"),
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
        self._jobs = JobList()
        self._entry: TextEntry | None = None
        self._cells = ShownCells()
        self._gpu, self._minutes = 0, _MINUTES[0]
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

    def on_key(self, event: events.Key) -> None:
        if self._entry is not None:
            event.prevent_default()  # no binding
            if not self._entry.press(event.key, event.character):
                self._entry = None
            self.draw()

    def on_paste(self, event: events.Paste) -> None:
        if self._entry is not None:
            self._entry.paste(event.text)
            self.draw()

    def on_resize(self, _event: events.Resize) -> None:
        # Without a change of the size it comes after a stop of the process, in which the terminal showed something else.
        self.action_redraw()
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
        self._jobs.take(picture)
        self._gpu = min(self._gpu, max(0, len(picture.gpus) - 1))
        self._lines("heading").show_all(gpu_panel.heading(picture, self._target.place, self._jobs.notes, width))
        has_history = width >= gpu_panel.WIDE and height >= _LEAST_CHART_HEIGHT and bool(picture.gpus)
        self._want_history(has_history, width)
        chart = gpu_panel.history(picture, self._gpu, self._minutes, width, _CHART_LINES) if has_history else []
        self._lines("history").show_all(chart)
        chosen = self._gpu if has_history else None
        panel = gpu_panel.panel(picture, self._jobs.colours, chosen, width, max(4, height // 3))
        self._lines("gpus").show_all(panel[: max(1, height // 2)])
        self._draw_jobs(width)
        self._draw_foot()

    def _is_mounted_with_lines(self) -> bool:
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#foot"))

    def _lines(self, name: str) -> Lines:
        return self.screen_stack[0].query_one(f"#{name}", Lines)

    def _want_history(self, has_history: bool, width: int) -> None:
        wanted = None
        if has_history:
            uuid = self._picture.gpus[self._gpu].gpu.uuid
            wanted = HistorySpan(uuid, 60.0 * self._minutes * width)
        if wanted != self._reader.wanted:
            self._reader.wanted = wanted
            if self._thread is not None:
                self._thread.hurry()

    def _draw_jobs(self, width: int) -> None:
        picture, listed = self._picture, self._jobs
        columns = widths(picture, width)
        self._lines("titles").show_all([titles(columns)])
        jobs = self._lines("jobs")
        jobs.show(
            len(listed.rows),
            lambda number: row(
                listed.rows[number],
                picture,
                columns,
                listed.colours.get(listed.rows[number].job.id),
                is_selected=number == listed.cursor,
            ),
        )
        first, height = jobs.scroll_offset.y, jobs.size.height
        if height and not first <= listed.cursor < first + height:
            jobs.scroll_to(y=listed.cursor if listed.cursor < first else listed.cursor - height + 1, animate=False)

    def _draw_foot(self) -> None:
        if self._entry is not None:
            self._lines("foot").show_all([self._entry.line(self.size.width)])
            return
        jobs, count = self._lines("jobs"), len(self._jobs.rows)
        first, last = jobs.scroll_offset.y + 1, min(count, jobs.scroll_offset.y + jobs.size.height)
        place = Span(f"{first}–{last} of {count}" if count > jobs.size.height else "", DARK.muted)
        left = [self._note] if self._note is not None else _FOOT
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

    def _own(self, what: str) -> JobReport | None:
        """Return the chosen job if keys may change it; else show why they may not."""
        report = self._jobs.chosen
        if report is not None and not self._target.may_change(report.job):
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
        self._jobs.move(count)
        self.draw()

    def action_page(self, count: int) -> None:
        """Choose the job a page away."""
        self.action_move(count * max(1, self._lines("jobs").size.height - 1))

    def action_sort(self, key: str = "") -> None:
        """Use the order of a key, or the next one."""
        self._jobs.sort(key)
        self.draw()

    def action_filter(self) -> None:
        """Read words, and show the jobs that have them."""

        def use(words: str) -> None:
            self._jobs.pattern = words.strip()

        self._entry = TextEntry("/", self._jobs.pattern, use)
        self.draw()

    def action_clear_filter(self) -> None:
        """Show all jobs."""
        self._jobs.pattern = ""
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
        report = self._jobs.chosen
        if report is not None:
            picture = self._picture
            self.push_screen(TextScreen(f"Job {report.job.id}", lambda width: _table(facts(report, picture), width)))

    def action_logs(self) -> None:
        """Show the output of the chosen job, and what follows."""
        report = self._jobs.chosen
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
                self._start(lambda: target.stop(job.id))

        named = f"{job.id} {job.spec.name or ''}".rstrip()
        end = f"It gets SIGTERM, and SIGKILL after {target.grace_seconds:g} s." if job.lease else "It waits."
        self.push_screen(Question((f"Stop job {named} of {user_name(job.owner_uid)}?", end)), use)

    def action_resize(self) -> None:
        """Read a new size or share for the chosen job, and change it."""
        report = self._own("resized")
        if report is None:
            return
        job_id = report.job.id

        def use(words: str) -> None:
            if words:
                self._start(lambda: self._target.resize(job_id, words))

        self._entry = TextEntry(f"memory or share of {job_id} (6GiB, 50%, none): ", "", use)
        self.draw()

    def action_redraw(self) -> None:
        """Send every cell again, as after another program wrote to the terminal."""
        self._cells.forget()
        if self.screen_stack:
            self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        shown: Any = renderable
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            shown = CellUpdate(renderable, self._cells)
        super()._display(screen, shown)

    def _fatal_error(self) -> None:
        # The command line writes one line and a file with details, in place of a traceback; see `watch`.
        self._close_messages_no_wait()

    def raise_error(self) -> None:
        """Raise the exception that ended the view, if one did."""
        if self._exception is not None:
            raise self._exception


def _table(rows_: Sequence[tuple[str, str]], width: int) -> list[str]:
    table = PlainTable(has_header=False)
    for name, text in rows_:
        table.add_row(name, text)
    return list(table.lines(width))


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
