"""Runs the jobs, compares the screens with `pgpu ps`, takes pictures, and writes what was found."""

import argparse
import json
import os
import pwd
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import five_users
from benchmarks.five_users.jobs import ENTRIES, JOBS, REFUSED, USERS
from benchmarks.five_users.machine import DAY_SECONDS, MODEL, Machine, write_day
from benchmarks.five_users.screens import Seens, known, of_page, of_top, picture_page, signed_in
from benchmarks.five_users.terminal import TerminalScreen
from benchmarks.shim_overhead import RESULTS, circumstances
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = "/usr/bin/chromium"
SIZES = ((80, 24), (140, 40))
"""Of the terminals."""

PAUSE_SECONDS = 4.0
"""Between two comparisons."""

_TABLES = """
for words in "pgpu gpus" "pgpu ps -n 30"; do printf '\\033[1m$ %s\\033[0m\\n' "$words"; $words; echo; done
printf '$ '; exec sleep 1000
"""


def main() -> int:
    """Run, compare, write; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=five_users.__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--pictures", type=Path, help="folder in which the pictures of the guides are written")
    arguments = parser.parse_args()
    try:
        pwd.getpwuid(min(USERS.values()))
    except KeyError:
        return _run_among_users()
    report: dict[str, Any] = {**circumstances(), "driver": f"simulated {MODEL}", "jobs": JOBS, "users": len(USERS)}
    report |= _show(arguments.pictures)
    path = arguments.output / f"five-users-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(path.read_text("utf-8"))
    return 1 if report["faults"] else 0


def _run_among_users() -> int:
    """Run this again in a mount namespace where /etc/passwd has the users and an empty tmpfs is on /run."""
    with tempfile.NamedTemporaryFile("w", suffix=".passwd") as passwd:
        rows = (f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in USERS.items())
        passwd.write(Path("/etc/passwd").read_text("utf-8") + "".join(rows))
        passwd.flush()
        Path(passwd.name).chmod(0o644)
        script = 'mount --bind "$0" /etc/passwd && mount -t tmpfs -o mode=0755 pgpu /run && exec "$@"'
        words = (sys.executable, "-m", "benchmarks.five_users", *sys.argv[1:])
        return subprocess.run(("unshare", "--mount", "sh", "-c", script, passwd.name, *words), check=False).returncode


def _show(pictures: Path | None) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - it starts a process

    with Machine.running() as machine, ExitStack() as stack:
        machine.root("admin", "quota", "kang", "--memory", "16GiB", "--jobs", "4")
        write_day(machine)
        screens = [
            stack.enter_context(TerminalScreen(machine.directory / "tmux", *size, ("pgpu", "top"), machine.environment))
            for size in SIZES
        ]
        browser = stack.enter_context(sync_playwright()).chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        stack.callback(browser.close)
        page = signed_in(browser.new_page(viewport={"width": 1280, "height": 1400}), machine)
        return Show(machine, screens, page, pictures).run()


class Show:
    """The jobs on their way through the queue, and the screens beside them."""

    def __init__(
        self, machine: Machine, screens: Sequence[TerminalScreen], page: "Page", pictures: Path | None
    ) -> None:
        self._machine, self._screens, self._page, self._pictures = machine, screens, page, pictures
        self._began_seconds = time.time()
        self._faults: list[str] = []
        self._compared: Counter[str] = Counter()

    def run(self) -> dict[str, Any]:
        """Submit all, compare until the last job has ended, and return what was found."""
        self._submit(is_late=False)
        refused, rules, most = self._refusals(), set[str](), 0
        # What is done once at least so many users have running jobs, or once fewer than so many jobs wait.
        steps = deque([(3, 60, self._picture_screens), (9, 25, self._submit_late), (3, 1, self._picture_tables)])
        while (live := self._live()) or steps:
            owners = Counter(job["owner_uid"] for job in live if job["state"] == "running")
            most = max(most, owners.total())
            self._compare()
            waiting = self._machine.listing("queue")["queue"]
            rules |= {each["rule"] for each in waiting}
            if steps and (len(owners) >= steps[0][0] or len(waiting) < steps[0][1]):
                steps.popleft()[2]()
            threading.Event().wait(PAUSE_SECONDS)
        self._compare()
        return {
            "seconds": round(time.time() - self._began_seconds),
            "most_running": most,
            "rules_seen": sorted(rules),
            "refused": refused,
            "ends": self._ends(),
            "compared": dict(self._compared),
            "history_minutes": self._history(),
            "load_average_after": round(os.getloadavg()[0], 2),
            "faults": self._faults,
        }

    def _live(self) -> list[Any]:
        return [job for job in self._machine.jobs().values() if job["finished_at_seconds"] is None]

    def _submit_late(self) -> None:
        self._submit(is_late=True)
        self._check_views()

    def _submit(self, *, is_late: bool) -> None:
        for user in USERS:
            path = self._machine.home / f"{user}.toml"
            entries = (entry for entry in ENTRIES if entry.user == user and entry.is_late == is_late)
            path.write_text("\n".join(entry.toml() for entry in entries), "utf-8")
            done = self._machine.user(user, "submit", path.name)
            if done.returncode:
                self._faults.append(f"{user} could not submit: {done.stderr}")

    def _refusals(self) -> list[str]:
        """Submit what must be refused, and return the lines that say why."""
        lines = []
        for user, words, reason in REFUSED:
            done = self._machine.user(user, "submit", *words)
            errors = [line for line in done.stderr.splitlines() if not line.startswith("pgpu: hint: ")]
            lines += errors
            if done.returncode == 0 or len(errors) != 1 or reason not in errors[0]:
                self._faults.append(f"not refused as it should be: {words}: {done.stderr}")
        return lines

    def _check_views(self) -> None:
        """Each user must see their own jobs by name, and of all others nothing but state, memory and GPU."""
        for user in USERS:
            jobs = json.loads(self._machine.user(user, "ps", "--all", "-o", "json").stdout)["jobs"]
            seen = {job["name"] for job in jobs if job["id"] != "-"}
            if seen != {name for entry in ENTRIES if entry.user == user for name in entry.names}:
                self._faults.append(f"{user} sees {sorted(seen)}")
            if any(job["name"] or job["command"] for job in jobs if job["id"] == "-"):
                self._faults.append(f"{user} sees names of others")

    def _compare(self) -> None:
        """Read the screens until each has agreed with `ps` about all that is on it, each thing for itself.

        A screen may be seconds behind, so what differs is read again; what `ps` has differently before and after is not compared.
        """
        reads: dict[str, Callable[[], Seens]] = {
            **{f"top {screen.columns}": partial(of_top, screen) for screen in self._screens},
            "dashboard": partial(of_page, self._page),
        }
        agreed: dict[str, set[str]] = {name: set() for name in reads}
        differing: list[str] = []

        def is_done() -> bool:
            before = self._machine.jobs()
            shown = {name: read() for name, read in reads.items()}
            after = self._machine.jobs()
            differing.clear()
            for name, seens in shown.items():
                is_top = name != "dashboard"
                pair = known(before, is_top=is_top), known(after, is_top=is_top)
                found = _differences(*pair, seens, agreed[name], is_top=is_top)
                differing.extend(f"{name}: {each}" for each in found)
            return not differing

        try:
            until(is_done)
        except AssertionError:
            self._faults.append("; ".join(differing[:5]))
        self._compared.update({"moments": 1, **{name: len(each) for name, each in agreed.items()}})

    def _ends(self) -> dict[str, int]:
        """Count how the jobs ended, and note those that should have ended otherwise."""
        jobs = self._machine.jobs()
        ended = {name: (job["state"], job["exit_code"]) for name, job in jobs.items()}
        for entry in ENTRIES:
            wrong = {name: ended.get(name) for name in entry.names if ended.get(name) != entry.ends}
            if wrong:
                self._faults.append(f"{entry.user}'s {entry.name} should have ended as {entry.ends}: {wrong}")
        if len(ended) != JOBS:
            self._faults.append(f"there are {len(ended)} jobs, not {JOBS}")
        page = self._page
        if page.title() != "pgpu" or page.locator("img").count() or page.evaluate("() => window.violations.length"):
            self._faults.append("markup of a job reached the page")
        return dict(
            sorted(Counter(f"{state} {'' if code is None else code}".strip() for state, code in ended.values()).items())
        )

    def _history(self) -> int:
        """Return for how many minutes there is a history of a GPU: of the day before, and of this run."""
        minutes = {int(each) for gpu in self._machine.listing("history", "--gpu")["gpus"] for each in gpu["at_seconds"]}
        begin, end = self._began_seconds - 0.9 * DAY_SECONDS, self._began_seconds
        if not minutes or min(minutes) > begin or max(minutes) < end:
            self._faults.append("the history has not both the day before and this run")
        return len(minutes)

    def _picture_screens(self) -> None:
        if (folder := self._pictures) is None:
            return
        wide = self._screens[-1]
        wide.press("t")  # ten minutes in a column: most of the day
        until(partial(_has_day, wide), wide.lines)
        for screen in self._screens:
            title = (
                f"pgpu top on {screen.columns} columns: four GPUs with bars of their slices, and the jobs of five users"
            )
            (folder / f"top-{screen.columns}.svg").write_text(screen.picture(title), "utf-8")
        picture_page(self._page, folder)

    def _picture_tables(self) -> None:
        if (folder := self._pictures) is None:
            return
        for columns in (80, 100, 160):
            words = ("sh", "-c", _TABLES)
            with TerminalScreen(
                self._machine.directory / "tmux", columns, 46, words, self._machine.environment
            ) as screen:
                until(partial(_has_prompt, screen), screen.lines)
                title = f"pgpu gpus and pgpu ps on {columns} columns, with 30 jobs of five users"
                (folder / f"tables-{columns}.svg").write_text(screen.picture(title), "utf-8")


def _differences(before: Seens, after: Seens, shown: Seens, agreed: set[str], *, is_top: bool) -> Iterator[str]:
    """Add to what has agreed, and yield what has not."""
    for each in before.keys() & after.keys() - agreed:
        seen = shown.get(each)
        if seen is not None and before[each] == after[each] and before[each].agrees(seen):
            agreed.add(each)
        # `top` has no line for some jobs, and the dashboard none for one that ended between two readings.
        elif seen is not None or (not is_top and after[each].state == "running"):
            yield f"{each}: {seen}, not {before[each]}"


def _has_day(screen: TerminalScreen) -> bool:
    """Whether the history has most of a day, with one hour in which nothing ran."""
    lines = screen.lines()
    return any("last 21h" in line for line in lines) and any(
        line.startswith("    busy") and line.count("·") < 20 for line in lines
    )


def _has_prompt(screen: TerminalScreen) -> bool:
    return "$" in screen.lines()


if __name__ == "__main__":
    raise SystemExit(main())
