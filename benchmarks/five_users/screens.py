"""What `pgpu top` and the dashboard show, in the form in which it is compared with `pgpu ps`, and pictures of the dashboard."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.five_users.machine import Machine
from benchmarks.five_users.terminal import TerminalScreen

from pgpu.units import GIB

if TYPE_CHECKING:
    from playwright.sync_api import Page

_TOP_COUNTS = re.compile(r"(\d+) running · (\d+) waiting")
_TOP_GPU = re.compile(r"GPU (\d+) .*?([\d.]+)/24 GiB")
_TOP_ROW = re.compile(
    r"([0-9a-f]{8}) +\S+ +[a-z]+ +(?:([\d,]+) +)?(?:([\d.]+)/)?([\d.]+) ([GM])iB.*? (waiting|held|starting|running)"
)
"""Id, GPUs, used memory, slice and its unit, state; jobs without a GPU do not match."""

_STATES = {"held": "waiting"}
"""Of `ps -o json`, where a screen names another."""

_PAGE_COUNTS = re.compile(r"(\d+) running, (\d+) waiting")
_PAGE_ROWS = """async () => {
    const scroller = document.getElementById("scroller"), found = new Map();
    for (let top = 0; top < scroller.scrollHeight; top += scroller.clientHeight / 2) {
        scroller.scrollTop = top;
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        for (const row of scroller.querySelectorAll("[role=rowgroup] [role=row]:not([hidden])"))
            found.set(row.firstChild.textContent, [...row.children].map((cell) => cell.textContent));
    }
    scroller.scrollTop = 0;
    return [...found.values()];
}"""


class Seen(NamedTuple):
    """What `ps` or a screen has of a job; with other words in place of the state, of a GPU or of all jobs. Memory in GiB."""

    state: str
    gpus: str = ""
    slice_gib: float = 0.0
    used_gib: float | None = None

    def agrees(self, other: "Seen") -> bool:
        """Whether nothing differs but the digits after the third one."""
        pairs = ((self.slice_gib, other.slice_gib), (self.used_gib, other.used_gib))
        return self[:2] == other[:2] and all(
            one is None or two is None or abs(one - two) <= 0.006 + 0.006 * one for one, two in pairs
        )


Seens = dict[str, Seen]
"""By the beginning of the job's id or by its name, `GPU 0` and so on, and `jobs`."""


def known(jobs: Mapping[str, Any], *, is_top: bool) -> Seens:
    """Return what `ps` has, as `top` or the dashboard shows it.

    Args:
        jobs: By name, as `ps -o json` prints them.
        is_top: Of several slices it shows the largest use, as `ps` does; the dashboard adds them up.
    """
    found: Seens = {}
    granted_gib: Counter[str] = Counter()
    states: Counter[str] = Counter()
    for name, job in jobs.items():
        # A job that ended is listed with the lease that it had.
        slices = [] if job["lease"] is None or job["finished_at_seconds"] else job["lease"]["slices"]
        used = [part["used_bytes"] / GIB for part in slices if part["used_bytes"] is not None]
        for part in slices:
            granted_gib[part["gpu_index"]] += part["memory_bytes"] / GIB
        used_gib = (max(used) if is_top else sum(used)) if used else None
        gpus = ",".join(part["gpu_index"] or "?" for part in slices)
        seen = Seen(job["state"], gpus, job["request"]["memory_bytes"] / GIB, used_gib)
        found[job["id"][:8] if is_top else name] = seen
        states["running" if is_top and job["state"] == "starting" else job["state"]] += 1
    found |= {f"GPU {place}": Seen("", "", granted_gib[place]) for place in map(str, range(4))}
    found["jobs"] = Seen(f"{states['running']} running, {states['waiting']} waiting")
    return found


def of_top(screen: TerminalScreen) -> Seens:
    """Return what is on the screen of `pgpu top`."""
    found: Seens = {}
    for line in screen.lines():
        if counts := _TOP_COUNTS.search(line):
            found["jobs"] = Seen(f"{counts[1]} running, {counts[2]} waiting")
        for place, granted in _TOP_GPU.findall(line):
            found[f"GPU {place}"] = Seen("", "", float(granted))
        if row := _TOP_ROW.match(line):
            job_id, gpus, used, size, unit, state = row.groups()
            scale = 1 if unit == "G" else 1 / 1024
            found[job_id] = Seen(
                _STATES.get(state, state),
                gpus or "",
                float(size) * scale,
                None if used is None else float(used) * scale,
            )
    return found


def of_page(page: "Page") -> Seens:
    """Return what is on the dashboard, all rows of which are scrolled into sight."""
    found: Seens = {}
    for name, state, _, gpus, memory, *_ in page.evaluate(_PAGE_ROWS):
        used, _, size = memory.partition(" × ")[0].rpartition(" / ")
        places = "" if gpus == "–" else gpus.replace(", ", ",")
        found[name] = Seen(_STATES.get(state, state), places, float(size), float(used) if used else None)
    for place, amounts in enumerate(page.locator("#cards .amounts").all_text_contents()):
        found[f"GPU {place}"] = Seen("", "", float(amounts.split(" / ")[1]))
    if counts := _PAGE_COUNTS.search(page.locator("#summary").text_content() or ""):
        found["jobs"] = Seen(f"{counts[1]} running, {counts[2]} waiting")
    return found


def signed_in(page: "Page", machine: Machine) -> "Page":
    """Open the dashboard as root; what its content policy refuses is then in `window.violations`."""
    page.add_init_script(
        "window.violations = []; addEventListener('securitypolicyviolation', (event) => violations.push(event.blockedURI))"
    )
    page.goto(f"http://127.0.0.1:{machine.port}/dashboard/")
    page.get_by_label("Token").fill(machine.root("admin", "token", "create", "--user", "root").strip())
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.pgpu?.isLoaded")
    return page


def picture_page(page: "Page", folder: Path) -> None:
    """Write pictures of the dashboard in both themes and on a phone, of few colours; the page is light afterwards."""
    from PIL import Image  # noqa: PLC0415 - brought by the extra lab

    page.reload()  # the chart of its history is drawn once a minute
    page.wait_for_function("() => window.pgpu?.isLoaded && window.pgpu.rows() > 0")
    for name, width, height in (("dark", 1280, 1400), ("phone", 390, 844), ("light", 1280, 1400)):
        page.emulate_media(color_scheme="dark" if name == "dark" else "light")
        page.set_viewport_size({"width": width, "height": height})
        page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
        path = folder / f"dashboard-{name}.png"
        page.screenshot(path=path)
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)
