"""The view of `pgpu top` over a client that runs nothing: what it shows, and what its keys do."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from tests.fakes.busy_client import BusyClient
from tests.terminal_screen import TerminalScreen
from tests.waiting import DEADLINE_SECONDS
from textual import events
from textual.strip import Strip

from pgpu.cli.output.plain_table import cell_width
from pgpu.cli.top.app import TopApp
from pgpu.cli.top.cells import ShownCells
from pgpu.cli.top.drawing import Slice, bar, buckets, chart, line_width, sparkline
from pgpu.cli.top.gpu_panel import heading
from pgpu.cli.top.job_table import SORT_ORDERS, facts, row, rows, titles, widths
from pgpu.cli.top.log_tail import LogTail, log_line
from pgpu.cli.top.picture import Picture, PictureReader
from pgpu.cli.top.target import Target
from pgpu.cli.top.text_entry import TextEntry
from pgpu.client import JobReport
from pgpu.errors import NodeError
from pgpu.model import GpuSeries, Job
from pgpu.units import GIB

IMAGES = Path(__file__).parents[2] / "docs" / "images"

HOSTILE = "[red]x[/] \x1b[31mred\u202eevil\n"

Use = Callable[[Any, TopApp], Awaitable[None]]


def run(client: BusyClient, use: Use, size: tuple[int, int] = (80, 24), uid: int | None = None) -> None:
    """Show the view in a terminal of this size, and use it."""

    async def shown() -> None:
        reader = PictureReader(client)
        for _ in range(30):
            picture = reader.read()
        app = TopApp(Target(client, "node-00", uid, 10.0), reader, picture)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await use(pilot, app)

    asyncio.run(shown())


def lines_of(app: TopApp) -> list[str]:
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


async def wait_for(pilot: Any, is_true: Callable[[], bool]) -> None:
    deadline_seconds = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline_seconds, lines_of(pilot.app)
        await pilot.pause(0.01)


def test_a_terminal_of_80_columns_shows_gpus_slices_and_jobs_with_their_trends() -> None:
    async def use(_pilot: Any, app: TopApp) -> None:
        lines = lines_of(app)
        assert len(lines) == 24
        assert all(cell_width(line) == 80 for line in lines)
        assert "24 running · 6 waiting" in lines[0]
        assert lines[1].startswith("simulated GPUs (NVIDIA GeForce RTX 3090): kernels compute nothing")
        assert "°C" in lines[2]
        assert "W " in lines[2]
        assert "MHz" in lines[2]
        assert {"█", "▒", "░"} <= set(lines[3])
        assert lines[6].split() == ["JOB", "NAME", "USER", "GPU", "MEMORY", "STATE", "AGE", "MEM", "TIME"]
        assert "▁" in lines[7] or "▂" in lines[7] or "▃" in lines[7]
        assert "quit" in lines[-1]

    run(BusyClient(), use)


def test_an_address_as_long_as_the_line_cuts_no_figure() -> None:
    found = heading(PictureReader(BusyClient()).read(), f"unix:///{'x' * 80}", "by GPU", 80)
    assert "24 running · 6 waiting  by GPU  unix:///x" in "".join(span.text for span in found[0])


def test_no_amount_of_memory_is_cut() -> None:
    picture = PictureReader(BusyClient()).read()
    assert widths(picture, 80)["MEMORY"] == len("1.75/22.99 GiB")
    assert widths(picture, 140)["MEMORY"] == len("1.75/22.99 GiB x 2")


def test_keys_sort_filter_and_show_details_and_output() -> None:
    client = BusyClient()

    async def use(pilot: Any, app: TopApp) -> None:
        await pilot.press("n")
        assert "by name" in lines_of(app)[0]
        assert "bert-12" in lines_of(app)[7]
        await pilot.press("slash", *"train waiting", "enter")
        await pilot.pause()
        assert "/train waiting" in lines_of(app)[0]
        assert "train-28" in lines_of(app)[7]
        assert lines_of(app)[8].strip() == ""
        await pilot.press("escape", "home", "i")
        await pilot.pause()
        assert any(line.split() == ["name", "bert-12"] for line in lines_of(app))
        await pilot.press("escape", "l")
        await wait_for(pilot, lambda: "Output of job" in lines_of(app)[0])
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert any("read-only" in line for line in lines_of(app))

    run(client, use)


def test_keys_that_come_in_one_piece_with_the_slash_are_all_the_filters() -> None:
    async def use(pilot: Any, app: TopApp) -> None:
        for key, character in (
            ("slash", "/"),
            *((each, each) for each in "trainq"),
            ("backspace", None),
            ("enter", "\r"),
        ):
            app.post_message(events.Key(key, character))
        await wait_for(pilot, lambda: "by GPU · /train " in lines_of(app)[0])
        app.post_message(events.Key("slash", "/"))
        app.post_message(events.Paste("ing\rn\nn"))
        app.post_message(events.Key("enter", "\r"))
        await wait_for(pilot, lambda: "by GPU · /training " in lines_of(app)[0])
        for key in ("slash", "ctrl+u", "x", "escape"):
            app.post_message(events.Key(key, key if key == "x" else None))
        await pilot.pause()
        assert "by GPU · /training " in lines_of(app)[0]
        assert "quit" in lines_of(app)[-1]

    run(BusyClient(), use)


@pytest.mark.parametrize("opening", [("x", "x"), ("i", "i"), ("question_mark", "?")])
def test_a_q_that_comes_in_one_piece_with_the_key_of_a_screen_leaves_the_screen(opening: tuple[str, str]) -> None:
    client = BusyClient()

    async def use(pilot: Any, app: TopApp) -> None:
        app.post_message(events.Key(*opening))
        app.post_message(events.Key("q", "q"))
        await wait_for(pilot, lambda: "quit" in lines_of(app)[-1])
        await pilot.press("n")
        assert "by name" in lines_of(app)[0]
        assert client.stopped == []

    run(client, use)


def test_a_long_line_of_input_shows_its_end() -> None:
    entry = TextEntry("/", "word " * 40 + "last", str)
    line = entry.line(80)
    assert line_width(line) == 80
    assert "word last" in "".join(span.text for span in line)


def test_a_job_is_stopped_only_after_a_yes_and_resized_by_words() -> None:
    client = BusyClient()

    async def use(pilot: Any, app: TopApp) -> None:
        job_id = app._jobs.rows[1].job.id
        await pilot.press("down", "x", "n")
        await pilot.press("delete")
        await pilot.pause()
        assert any("Stop job" in line for line in lines_of(app))
        assert client.stopped == []
        await pilot.press("y")
        await wait_for(pilot, lambda: bool(client.stopped))
        assert client.stopped == [(job_id, 10.0)]
        await pilot.press("r", *"6GiB 50%", "enter")
        await wait_for(pilot, lambda: client.resized == [(job_id, 6 * GIB, 0.5)])
        await pilot.press("r", *"6G", "enter")
        await wait_for(pilot, lambda: "ambiguous" in lines_of(app)[-1])

    run(client, use)


def test_other_users_jobs_are_read_only() -> None:
    client = BusyClient(running=3, waiting=0)

    async def use(pilot: Any, app: TopApp) -> None:
        for key in ("x", "r", "end", "x", "l"):
            await pilot.press(key)
            await pilot.pause()
            if key != "end":
                assert "another user's" in lines_of(app)[-1]
                assert len(app.screen_stack) == 1
        assert client.stopped == []

    run(client, use, uid=4711)


def test_from_120_columns_on_the_history_of_the_chosen_gpu_stands_on_top() -> None:
    async def use(pilot: Any, app: TopApp) -> None:
        await wait_for(pilot, lambda: "█" in "".join(lines_of(app)[3:9]))
        assert lines_of(app)[2].startswith("GPU 0  last ")
        await pilot.press("g", "t")
        await pilot.pause()
        assert lines_of(app)[2].startswith("GPU 1  last 18h ")

    run(BusyClient(), use, (120, 40))


@pytest.mark.parametrize("size", [(20, 5), (40, 10), (300, 80)])
def test_a_terminal_of_any_size_is_filled(size: tuple[int, int]) -> None:
    async def use(_pilot: Any, app: TopApp) -> None:
        assert [cell_width(line) for line in lines_of(app)] == [size[0]] * size[1]

    run(BusyClient(), use, size)


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_of_the_guides_loads_nothing(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(re.findall(r"https?:[^\"') ]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|@import|<image|<script|href", text)


def test_what_steers_a_terminal_is_escaped_in_names_and_output() -> None:
    async def use(pilot: Any, app: TopApp) -> None:
        for key in ("s", "i"):
            await pilot.press(key)
            await pilot.pause()
            text = "".join(lines_of(app))
            assert text.isprintable()
            assert "[red]x[/]" in text
            assert "\\x1b" in text or key == "s"

    run(BusyClient(running=5, name=HOSTILE), use, (160, 40))
    assert log_line("\x1b[31mred\x1b[0m [bold]\x07\t|") == "red [bold]\\x07     |"
    assert log_line("10 %\r20 %\r") == "20 %"


def test_an_advisory_limit_is_shown_at_any_width() -> None:
    picture = PictureReader(BusyClient(is_advisory=True)).read()
    for width in (80, 120):
        columns = widths(picture, width)
        line = row(picture.jobs[0], picture, columns, None, is_selected=False)
        assert "advisory" in "".join(span.text for span in line)
        assert sum(cell_width(span.text) for span in line) == width


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 250])
def test_each_row_is_as_wide_as_the_titles_whatever_it_holds(width: int) -> None:
    client = BusyClient(name="잡 名前 x" * 5)
    picture = PictureReader(client).read()
    columns = widths(picture, width)
    (head,) = titles(columns)
    lengths = {
        sum(cell_width(span.text) for span in row(report, picture, columns, "#ffffff", is_selected=True))
        for report in picture.jobs
    }
    assert lengths == {cell_width(head.text)}
    assert cell_width(head.text) == width


def test_a_waiting_job_shows_why_in_the_place_of_its_trends() -> None:
    picture = PictureReader(BusyClient()).read()
    text = "".join(span.text for span in row(picture.jobs[-1], picture, widths(picture, 100), None, is_selected=False))
    assert "at most 9.7 GiB" in text


def test_a_job_that_runs_since_the_forecast_shows_no_start() -> None:
    client = BusyClient(waiting=1)
    reader = PictureReader(client)
    reader.read()
    (waited,) = reader.read().waits
    client.waiting, client.running = 0, 26  # the forecast stays for a while; the last job is hidden
    picture = reader.read()
    assert waited in {report.job.id for report in picture.jobs}
    assert picture.waits == {}


def test_a_waiting_job_shows_when_it_starts_or_the_bounds_of_that_and_what_they_rest_on() -> None:
    reader = PictureReader(BusyClient())
    assert reader.read().waits == {}  # the first frame waits for no forecast
    picture = reader.read()
    known, bounded = (
        next(report for report in picture.jobs if report.job.id == job_id) for job_id in list(picture.waits)[:2]
    )

    def shown(report: JobReport) -> str:
        return "".join(span.text for span in row(report, picture, widths(picture, 160), None, is_selected=False))

    assert re.search(r"in about (10m|9m \d+s): at most 9.7 GiB", shown(known))
    assert re.search(r"in 5m \d+s or later: at most 9.7 GiB", shown(bounded))
    facts_ = dict(facts(bounded, picture))
    assert facts_["starts"].endswith("or later: a job ends before, and no earlier run of its program has ended here")


def test_each_order_keeps_all_jobs_and_equal_ones_in_their_places() -> None:
    picture = PictureReader(BusyClient()).read()
    for order in SORT_ORDERS:
        found = rows(picture, order, "")
        assert len(found) == len(picture.jobs)
        assert found == sorted(found, key=order.sort_key)
    assert {report.gpus for report in rows(picture, SORT_ORDERS[0], "")[:6]} == {("0",)}


def test_a_reading_that_fails_leaves_the_last_picture_with_the_error() -> None:
    class Broken(BusyClient):
        is_broken = False

        def gpus(self, simulate: str | None = None) -> Any:
            if self.is_broken:
                raise NodeError("the driver is gone\n")
            return super().gpus(simulate)

    client = Broken()
    reader = PictureReader(client)
    before = reader.read()
    client.is_broken = True
    after = reader.try_read()
    assert (after.gpus, after.jobs) == (before.gpus, before.jobs)
    assert after.problem == "the driver is gone"
    client.is_broken = False
    assert reader.try_read().problem == ""


def test_the_uid_of_a_server_over_tcp_is_not_guessed() -> None:
    picture: Picture = PictureReader(BusyClient()).read()
    own, hidden = picture.jobs[0].job, picture.jobs[23].job

    def may_change(uid: int | None, job: Job) -> bool:
        return Target(BusyClient(), "node-00", uid, 10.0).may_change(job)

    assert may_change(None, own)
    assert may_change(own.owner_uid, own)
    assert not may_change(4711, own)
    assert not may_change(None, hidden)


def shown_by(shown: ShownCells, *lines: Sequence[tuple[str, str]]) -> str:
    """Return what is sent for lines of texts with their styles."""
    strips = [Strip([Segment(text, Style.parse(style)) for text, style in line]) for line in lines]
    return shown.show([(y, [(0, strip)]) for y, strip in enumerate(strips)], ColorSystem.TRUECOLOR)


def test_only_cells_that_differ_are_sent_and_only_colours_that_do() -> None:
    shown = ShownCells()
    shown_by(shown, [("name", "red"), ("  7 end", "blue")])
    assert shown_by(shown, [("name", "red"), ("  7 end", "blue")]) == ""
    assert shown_by(shown, [("game", "red"), ("  8 end", "blue")]) == "\x1b[1;1H\x1b[31mg\x1b[7G\x1b[34m8\x1b[0m"
    # The colour of a blank is not seen.
    assert shown_by(shown, [("game", "red"), ("  8", "blue"), (" ", "bold red"), ("end", "blue")]) == ""
    shown.forget()
    assert shown_by(shown, [("ab", "bold"), ("c", "default")]) == "\x1b[1;1H\x1b[0;1;39;49mab\x1b[0;39;49mc"


def test_a_character_that_combines_with_none_of_its_text_is_not_sent_at_each_draw() -> None:
    shown = ShownCells()
    assert "\u0301" not in shown_by(shown, [("a", "red"), ("\u0301b", "blue")])
    assert shown_by(shown, [("a", "red"), ("\u0301b", "blue")]) == ""


_LINES = st.lists(
    st.tuples(
        st.text("ab █가é\u0301", max_size=6).filter(lambda text: cell_width(text[:1]) > 0),
        st.sampled_from(("red", "bold", "on blue", "default")),
    ),
    max_size=5,
)


@given(st.lists(st.tuples(_LINES, _LINES), min_size=1, max_size=4))
def test_a_terminal_that_gets_differences_shows_what_one_that_gets_everything_does(frames: list[Any]) -> None:
    shown, screen = ShownCells(), TerminalScreen(80, 2)
    for frame in frames:
        lines = [[*line, (" " * (40 - sum(cell_width(text) for text, _ in line)), "default")] for line in frame]
        screen.feed(shown_by(shown, *lines).encode())
        whole = TerminalScreen(80, 2)
        whole.feed(shown_by(ShownCells(), *lines).encode())
        assert seen(screen) == seen(whole)


def test_a_second_of_thirty_busy_jobs_is_at_most_six_kilobytes_on_80_columns() -> None:
    client = BusyClient()
    reader, shown, counts = PictureReader(client), ShownCells(), []

    async def use(pilot: Any, app: TopApp) -> None:
        for _ in range(10):
            app.show(reader.read())
            await pilot.pause()
            lines = [(y, [(0, strip)]) for y, strip in enumerate(app.screen._compositor.render_strips())]
            counts.append(len(shown.show(lines, ColorSystem.TRUECOLOR).encode()))

    run(client, use)
    assert max(counts[1:]) <= 6000, counts


def seen(screen: TerminalScreen) -> dict[tuple[int, int], tuple[str, str]]:
    """Return the cells of a screen; of a blank only the background."""
    return {
        place: (text, " ".join(part for part in style.split() if text != " " or part.startswith("4")))
        for place, (text, style) in screen.cells.items()
    }


def test_a_bar_has_its_width_and_shows_what_is_used_reserved_and_free() -> None:
    line = bar([Slice(8 * GIB, 4 * GIB, "#111111"), Slice(0, 4 * GIB, "#222222")], 24 * GIB, 24)
    assert [(span.text, span.colour) for span in line[:3]] == [
        ("████", "#111111"),
        ("▒▒▒▒", "#111111"),
        ("████", "#222222"),
    ]
    assert "".join(span.text for span in line)[12:] == "░" * 12
    full = bar([Slice(30 * GIB, 30 * GIB, "#111111")], 24 * GIB, 24)
    assert "".join(span.text for span in full) == "█" * 24


def test_a_sparkline_ends_with_the_newest_value_and_has_gaps() -> None:
    assert sparkline([0.0, None, 1.0, 0.5, 2.0], 4) == "·█▅█"
    assert sparkline([1.0], 3) == "  █"


def test_the_history_has_a_column_for_each_period_and_gaps_where_nothing_ran() -> None:
    series = GpuSeries("", (0, 60, 240), (GIB, 3 * GIB, 4 * GIB), (GIB, GIB, 2 * GIB), (10, None, 50))
    found = buckets(series, 300.0, 2, 3)
    assert [None if each is None else (each.reserved_bytes / GIB, each.busy) for each in found] == [
        (2.0, 0.1),
        None,
        (4.0, 0.5),
    ]
    lines = chart([None, *found], 4 * GIB, 2)
    assert [sum(cell_width(span.text) for span in line) for line in lines] == [4, 4, 4]
    assert lines[-1][0].text == "·▂·▅"


def test_output_is_followed_and_kept_in_whole_lines() -> None:
    class Talking(BusyClient):
        def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Any:
            assert (id_or_name, follow, tail_lines) == ("job", True, 1000)
            yield "stdout", b"one\ntw"
            yield "stdout", b"o \xea\xb0"
            yield "stdout", b"\x80\nrest"

    tail = LogTail(Talking(), "job")
    tail.thread.join()
    assert tail.lines(80) == ["one", "two 가", "rest"]
