"""The dashboard in Chromium, from a real server with real jobs: what it loads, shows and keeps, and who may see it."""

import grp
import http.client
import json
import pwd
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import CHROMIUM
from tests.served import ServerProcess, serving
from tests.system.conftest import Place, opened_place
from tests.waiting import DEADLINE_SECONDS, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.title='owned'>"
PRINTS = f"echo \"{HOSTILE}\"; printf '\\033[2J\\033[31mred\\033[0m\\n'; exec sleep 600"
SUBMITTERS = grp.getgrgid(65534)
"""`nogroup`, which is the group of some users of every machine."""

NOTE_OF_USAGE = "of jobs that ended: memory reserved per GPU, and peaks, times their duration"
TIMEOUT_MS = DEADLINE_SECONDS * 1000.0
WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""
LEFTS = "(cells) => cells.map((cell) => Math.round(cell.getBoundingClientRect().left))"
AXE = """async () => (await axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}))
    .violations.map(({id, nodes}) => id + ": " + nodes.map((node) => node.target.join(" ")).join(", "))"""


@dataclass
class World:
    """A server with jobs, and a browser."""

    place: Place
    server: ServerProcess
    browser: "Browser"
    url: str
    requests: set[str] = field(default_factory=set)

    def ask(self, method: str, route: str) -> str:
        """Ask the server as its administrator."""
        connection = http.client.HTTPConnection("pgpu")
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self.server.socket))
            connection.request(method, route)
            return connection.getresponse().read().decode()

    def token_of(self, user: str) -> str:
        """Make a token for a user of this machine."""
        text: str = json.loads(self.ask("POST", f"/v1/admin/tokens?uid={pwd.getpwnam(user).pw_uid}"))["text"]
        return text

    def context(self, **options: Any) -> "BrowserContext":
        """Return a browser without cookies, whose requests are noted."""
        made = self.browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        made.set_default_timeout(TIMEOUT_MS)
        made.add_init_script(WATCH)
        made.on("request", lambda request: self.requests.add(request.url))
        return made

    def signed_in(self, user: str = "root", **options: Any) -> "Page":
        """Return the page of a new browser that a user signed in by hand, once it shows jobs."""
        page = self.context(**options).new_page()
        page.goto(self.url)
        page.get_by_label("Token").fill(self.token_of(user))
        page.keyboard.press("Enter")
        shows(page)
        return page


def wait_for(page: "Page", expression: str, arg: object = None) -> None:
    """Wait until JavaScript is true. Playwright looks at each frame by default, which the CPU has to draw here."""
    page.wait_for_function(expression, arg=arg, polling=100)


def shows(page: "Page") -> None:
    """Wait until a page has its rows and what it loads beside them."""
    wait_for(page, "() => window.pgpu?.isLoaded && window.pgpu.rows() > 0")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - skipped without it

    with ExitStack() as stack:
        place = stack.enter_context(opened_place())
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = stack.enter_context(
            serving(
                place.path / "run",
                "--tcp",
                f"127.0.0.1:{port}",
                state_dir=place.path / "state",
                simulate="RTX 3090x2",
                environment={"PGPU_SUBMITTERS": SUBMITTERS.gr_name},
            )
        )
        place.environment["PGPU_HOST"] = server.host
        stack.callback(place.close)
        place.detach("first", "4GiB", ("sh", "-c", PRINTS))
        place.detach("second", "6GiB", ("sh", "-c", "exec sleep 600"))
        for number in range(3):
            done = place.run("submit", "--name", f"waits-{number}", "--memory", "20GiB", "--", "sleep", "600")
            assert done.returncode == 0, done.stderr
        until(lambda: place.job("first")["state"] == "running" and place.job("second")["state"] == "running")
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        yield World(place, server, browser, f"http://127.0.0.1:{port}/dashboard/")


def test_the_page_is_clean_in_both_themes_and_on_a_phone(world: World) -> None:
    page = world.signed_in(color_scheme="light")
    page.add_init_script(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    page.reload()
    shows(page)
    titles, first = (
        page.locator(f"#scroller [role={role}]").evaluate_all(LEFTS)[:8] for role in ("columnheader", "gridcell")
    )
    assert titles == first
    page.get_by_text("The same as a table").click()
    found = {"light": page.evaluate(AXE)}
    page.emulate_media(color_scheme="dark")
    found["dark"] = page.evaluate(AXE)
    page.set_viewport_size({"width": 390, "height": 844})
    found["phone"] = page.evaluate(AXE)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("row", name=re.compile("first")).click()
    page.get_by_role("dialog").wait_for()
    found["dialog"] = page.evaluate(AXE)
    assert not any(found.values()), found
    assert page.evaluate("() => window.violations") == []
    assert {url for url in world.requests if not url.startswith(world.url)} == set()
    page.context.close()


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(world: World) -> None:
    page = world.signed_in()
    page.reload()
    shows(page)
    order = []
    for _ in range(16):
        page.keyboard.press("Tab")
        order.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()"))
    assert order[:10] == [
        "Skip to content",
        "GPUs",
        "History",
        "Queue",
        "Jobs",
        "Usage",
        "theme",
        "sign-out",
        "gpu-choice",
        "The same as a table",
    ]
    table = page.get_by_role("grid")
    table.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.getAttribute('role')") == "grid"
    page.context.close()


def test_what_cannot_be_read_is_named_and_the_rest_is_shown_without_a_gpu_too(world: World) -> None:
    page = world.signed_in()
    assert page.locator("#usage-note").text_content() == NOTE_OF_USAGE
    page.route("**/usage.json", lambda route: route.abort())
    page.add_init_script("delete window.SharedWorker")
    empty = 'event: all\ndata: {"gpus": [], "jobs": [], "head": {}}\n\n'
    page.route("**/dashboard/events", lambda route: route.fulfill(content_type="text/event-stream", body=empty))
    page.reload()
    wait_for(page, "() => window.pgpu?.isLoaded")
    assert page.locator("#usage-note").text_content() == "cannot be read now"
    assert page.locator("#history-note", has_text="busy time of the GPUs in use").is_visible()
    page.context.close()


def test_a_filter_that_matches_nothing_leaves_one_row_that_says_so(world: World) -> None:
    page = world.signed_in()
    scroller = page.locator("#scroller")
    # Many rows, so that some are below those in sight.
    page.evaluate(
        """() => {
        const { state, jobs } = window.pgpu;
        for (let number = 1e6; number < 1e6 + 500; number++) state.jobs.set(number, [number, "waiting", 1, 1, []]);
        jobs.update(state, { jobs: [...state.jobs.values()] });
        jobs.render();
    }"""
    )
    assert scroller.evaluate("(element) => element.scrollHeight") > 500 * 34
    page.get_by_label("Filter jobs").fill("matches nothing")
    scroller.get_by_text("no job matches").wait_for()
    assert scroller.evaluate("(element) => element.scrollHeight === element.clientHeight")
    page.get_by_label("Filter jobs").fill("first")
    scroller.get_by_text("no job matches").wait_for(state="hidden")
    page.context.close()


def test_markup_and_terminal_sequences_in_commands_and_output_stay_text(world: World) -> None:
    page = world.signed_in()
    page.get_by_role("row", name=re.compile("first")).click()
    log = page.get_by_label("Output of the job")
    wait_for(page, "() => document.getElementById('log').textContent.includes('red')")
    assert log.text_content() == f"{HOSTILE}\nred\n"
    assert page.get_by_role("dialog").locator("dd", has_text="onerror").count() == 1
    assert page.evaluate("() => [document.title, document.images.length]") == ["pgpu", 0]
    page.context.close()


def test_a_bound_of_a_start_that_has_passed_is_none(world: World) -> None:
    page = world.signed_in()
    found = page.evaluate(
        """async () => {
            const { startText } = await import("./page/queue.js");
            return [[0.4, 0.4, 0.4], [null, 0, null], [null, 0.9, null], [null, 0.9, 0.2], [null, 0.9, 90], [null, 90, 0.9]].map(
                (times) => startText(...times));
        }"""
    )
    assert found == ["starts now", *["start unknown"] * 3, "within 1m 30s", "1m 30s or later"]
    page.context.close()


def test_five_users_see_of_others_jobs_their_memory_gpu_and_state_alone(world: World) -> None:
    job_of = {"root": "first", "daemon": None}
    for user in [entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == SUBMITTERS.gr_gid][:3]:
        variables = {"PGPU_HOST": world.url.removesuffix("/dashboard/"), "PGPU_TOKEN": world.token_of(user)}
        done = world.place.run("submit", "--name", f"of-{user}", "--memory", "21GiB", "--", "sleep", "600", **variables)
        assert done.returncode == 0, done.stderr
        job_of[user] = f"of-{user}"
    names = {name for name in job_of.values() if name is not None}
    for user, own_name in job_of.items():
        page = world.signed_in(user)
        shown = page.evaluate("() => [...window.pgpu.state.own.values()].map((row) => row[2])")
        public = page.evaluate("() => [...window.pgpu.state.jobs.values()]")
        assert len(public) == 5 + len(names) - 1
        assert all(len(row) == 5 for row in public)
        content = page.content()
        if user == "root":
            assert names < set(shown)
        else:
            assert shown == [name for name in [own_name] if name is not None]
            assert not [name for name in names - {own_name} if name in content]
            assert world.place.job("first")["id"] not in content
            assert "another user's" in content
        page.context.close()
    world.place.run("cancel", *(names - {"first"}))


def test_ten_tabs_of_one_browser_share_a_stream_which_ends_while_none_is_visible(world: World) -> None:
    pages = [world.signed_in()]
    for _ in range(9):
        pages.append(pages[0].context.new_page())
        pages[-1].goto(world.url)
    for page in pages:
        shows(page)
    world.place.detach("eleventh", "1GiB", ("sh", "-c", "exec sleep 600"))
    for page in pages:
        wait_for(page, "() => [...window.pgpu.state.own.values()].some((row) => row[2] === 'eleventh')")

    def streams() -> int:
        """Count the streams that have ended."""
        text = world.ask("GET", "/metrics")
        return int(
            float((re.findall(r'pgpu_http_requests_total\{[^}]*/dashboard/events"[^}]*\} (\S+)', text) or ["0"])[0])
        )

    before = streams()
    for page in pages:
        page.evaluate(_HIDDEN, True)
    until(lambda: streams() == before + 1)
    world.place.run("stop", "--time", "0", "eleventh")
    pages[3].evaluate(_HIDDEN, False)
    wait_for(
        pages[3], "() => [...window.pgpu.state.own.values()].every((row) => row[2] !== 'eleventh' || row[7] !== null)"
    )
    pages[0].context.close()


def test_a_connection_on_which_nothing_comes_is_not_called_live(world: World) -> None:
    page = world.signed_in()
    page.add_init_script("delete window.SharedWorker")  # a page's clock is not that of its worker
    page.clock.install()
    page.reload()
    shows(page)
    page.get_by_text("live", exact=True).wait_for()
    world.server.process.send_signal(signal.SIGSTOP)  # sockets stay open
    try:
        page.clock.fast_forward(12_000)
        page.get_by_text("reconnecting").wait_for()
    finally:
        world.server.process.send_signal(signal.SIGCONT)
    page.get_by_text("live", exact=True).wait_for()
    page.context.close()


def test_a_tab_that_is_hidden_while_its_stream_is_tried_again_opens_none(world: World) -> None:
    page = world.signed_in()
    opened = page.evaluate(
        """async () => {
            let answer, opened;
            window.fetch = () => new Promise((resolve) => (answer = resolve));
            window.EventSource = class { constructor() { opened += 1; } addEventListener() {} close() {} };
            const { Stream } = await import("./page/stream.js"), found = [];
            for (const isHidden of [true, false]) {
                opened = 0;
                const stream = new Stream(() => {});
                stream.setWanted(true);
                stream.source = null;
                const retried = stream.retry();
                if (isHidden) stream.setWanted(false);
                answer(new Response('{"user": "root"}'));
                await retried;
                found.push(opened);
            }
            return found;
        }"""
    )
    assert opened == [1, 2]
    page.context.close()


def test_the_next_user_of_a_browser_sees_nothing_of_the_one_before(world: World) -> None:
    page = world.signed_in()
    hidden = page.context.new_page()
    hidden.goto(world.url)
    shows(hidden)
    hidden.evaluate(_HIDDEN, True)
    page.get_by_role("button", name="Sign out").click()
    for each in (page, hidden):
        each.get_by_label("Token").wait_for()
        assert "first" not in each.content()
        assert each.evaluate("() => window.pgpu.rows()") == 0
    page.get_by_label("Token").fill(world.token_of("daemon"))
    page.keyboard.press("Enter")
    shows(page)
    assert page.evaluate("() => window.pgpu.state.own.size") == 0
    assert world.place.job("first")["id"] not in page.content()
    page.context.close()


_HIDDEN = """(isHidden) => {
    Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange", {bubbles: true}));
}"""


def test_a_machine_without_a_gpu_has_a_page_in_every_tab(world: World) -> None:
    with opened_place() as place, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        with serving(place.path / "run", "--tcp", f"127.0.0.1:{port}", environment={"PGPU_SIMULATE": ""}) as server:
            other = replace(world, place=place, server=server, url=f"http://127.0.0.1:{port}/dashboard/")
            first = world.context().new_page()
            first.goto(other.url)
            first.get_by_label("Token").fill(other.token_of("root"))
            first.keyboard.press("Enter")
            second = first.context.new_page()
            for page in (first, second):
                page.goto(other.url)
                wait_for(page, "() => window.pgpu?.isLoaded")
                assert page.get_by_text("0 GPUs").is_visible()
            first.context.close()


def test_nothing_is_stale_when_a_killed_server_is_back(world: World) -> None:
    job_id = world.place.detach("short", "1GiB", ("sh", "-c", "exec sleep 600"))
    page = world.signed_in()
    has_job = "(id) => [...window.pgpu.state.own.values()].some((row) => row[1] === id && row[7] === null)"
    wait_for(page, has_job, arg=job_id)
    page.get_by_role("row", name=re.compile("second")).click()
    second = world.place.job("second")["id"]
    page.get_by_role("dialog").locator("dd", has_text=second).wait_for()
    world.server.end(signal.SIGKILL)
    page.get_by_text("reconnecting").wait_for()
    # Without the server, the ledger itself is asked: the job ends while no process serves the page.
    assert (
        world.place.run("stop", "--time", "0", "short", PGPU_HOST="embedded", PGPU_SIMULATE="RTX 3090x2").returncode
        == 0
    )
    world.server.start()
    page.get_by_text("live", exact=True).wait_for()
    wait_for(page, f"(id) => !({has_job})(id)", arg=job_id)
    assert page.evaluate("() => window.pgpu.rows()") >= 5
    # Jobs have other numbers in the new process.
    assert page.get_by_role("dialog").locator("dd", has_text=second).is_visible()
    page.context.close()


@pytest.mark.parametrize("has_server", [False, True])
def test_a_link_signs_one_browser_in_once(world: World, has_server: bool) -> None:
    host = world.place.environment["PGPU_HOST"]
    world.place.environment |= {"PGPU_HOST": host if has_server else "embedded", "PGPU_SIMULATE": "RTX 3090x2"}
    process = world.place.start("dashboard", "--port", "0")
    world.place.environment["PGPU_HOST"] = host
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    for expected in ("live", "waiting to sign in"):
        context = world.context()
        page = context.new_page()
        page.goto(link)
        page.locator("#live", has_text=expected).wait_for()
        assert page.url.endswith("/dashboard/")
        if expected == "live":
            shows(page)
            page.get_by_role("row", name=re.compile("first")).click()
            wait_for(page, "() => document.getElementById('log').textContent.includes('red')")
        context.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_SECONDS) == 0
