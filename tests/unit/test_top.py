"""The view of `pgpu top` over a client that runs nothing: what it shows, and what its keys do."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.busy_client import BusyClient
from tests.waiting import DEADLINE_SECONDS

from pgpu.cli.output.plain_table import cell_width
from pgpu.cli.top.app import Target, TopApp, line_difference
from pgpu.cli.top.drawing import Slice, Span, bar, buckets, chart, sparkline
from pgpu.cli.top.job_table import SORT_ORDERS, is_own, row, rows, titles, widths
from pgpu.cli.top.log_tail import LogTail, log_line
from pgpu.cli.top.picture import Picture, PictureReader
from pgpu.errors import NodeError
from pgpu.model import GpuSeries
from pgpu.units import GIB

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DRAWS_VARIABLE = "PGPU_DRAW_TOP"
"""Set: the pictures of the guide are drawn anew."""

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


def test_a_job_is_stopped_only_after_a_yes_and_resized_by_words() -> None:
    client = BusyClient()

    async def use(pilot: Any, app: TopApp) -> None:
        job_id = app._rows[1].job.id
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


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
def test_the_guide_has_a_picture_that_loads_nothing(size: tuple[int, int]) -> None:
    path = IMAGES / f"top-{size[0]}.svg"

    async def draw(pilot: Any, app: TopApp) -> None:
        await wait_for(pilot, lambda: size[0] < 120 or "█" in "".join(lines_of(app)[3:9]))
        drawn = app.export_screenshot(title="pgpu top")
        # Textual's picture loads a font from a server of others; any font of one width fits, since each text has its length.
        drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL).replace(
            "<!-- Generated with Rich https://www.textualize.io -->", ""
        )
        drawn = drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
        path.write_text("\n".join(map(str.rstrip, drawn.splitlines())) + "\n", "utf-8")

    if os.environ.get(DRAWS_VARIABLE):
        run(BusyClient(), draw, size)
    text = path.read_text("utf-8")
    assert set(re.findall(r"https?:[^\"') ]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in text
    assert "notebook-16" in text


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
    assert is_own(own, None)
    assert is_own(own, own.owner_uid)
    assert not is_own(own, 4711)
    assert not is_own(hidden, None)


def test_only_the_part_of_a_line_that_differs_is_sent() -> None:
    old = (Span("name"), Span("  7 ", "#ff0000"), Span("end"))
    assert line_difference(old, (Span("name"), Span("  8 ", "#ff0000"), Span("end")), 80) == (4, 8)
    assert line_difference(old, (*old, Span("more")), 80) == (11, 80)
    assert line_difference((), old, 80) == (0, 80)


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
