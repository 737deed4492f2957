"""kill -9 of a server, its agents, guards, jobs and clients, while commands ask it for more.

After each kill the books must balance (`storm_books`); in the end every command that was left alone was told the truth, and
nothing is left: no slice, socket, mount, container or process. The long form is benchmarks/kill_storm.
"""

import contextlib
import random
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.forked_commands import PGPU
from tests.served import ServerProcess, serving
from tests.system.conftest import Place, opened_place
from tests.system.storm_books import WHOLE, Books
from tests.system.storm_victims import agent, guard, kill, main_process, processes_of
from tests.waiting import until

from pgpu.host.process_identity import identify_running
from pgpu.ledger import Entry, Ledger
from pgpu.model import JobState, ProcessHolder

CAPACITY_BYTES = 24 << 30
"""Of the simulated GPU."""

ASKERS = 5
"""Commands that are under way at a time."""

_WEIGHTS = {"server": 3, "agent": 6, "guard": 1, "job": 3, "client": 4}
_SIZES = ("2GiB", "6GiB", "10GiB")
_SCRIPT = """echo begin >>"$0"
case $(/.pgpu/pgpu-probe allocate 1000000000) in *"allocate 0") echo fits >>"$0";; esac
for line in $(seq "$1"); do echo "$line"; sleep 0.1; done
echo end >>"$0"
"""


@dataclass
class Command:
    """One `pgpu run`, `submit`, `wait` or `logs` under way."""

    verb: str
    name: str
    """Of the job that it is about."""

    line_count: int
    """How many lines the job writes."""

    process: "subprocess.Popen[bytes]"
    output: Path
    was_killed: bool = False

    @property
    def said(self) -> str:
        """Everything on its standard output."""
        return self.output.read_text()

    @property
    def complained(self) -> str:
        """Everything on its standard error."""
        return Path(f"{self.output}.err").read_text()


@dataclass
class ServerStorm:
    """One server under load, and who is killed on its machine."""

    place: Place
    server: ServerProcess
    books: Books
    chance: random.Random
    image: str | None = None
    """Of one job in four; None for processes alone."""

    killed: Counter[str] = field(default_factory=Counter)
    commands: list[Command] = field(default_factory=list)
    _restart_at_seconds: float | None = None
    _jobs_before: int = 0
    """How many there were when the server was killed last."""

    def rage(self, kills: int) -> None:
        """Kill so many processes, and look after each."""
        (self.place.path / "said").mkdir()
        while self.killed.total() < kills:
            self._keep_asking()
            self._kill_one()
            self.books.check()
        self.calm()

    def calm(self) -> None:
        """Let everything end, and account for every job and every command."""
        self._serve_again(at_once=True)
        self._until_over()
        self.books.close()
        for command in self.commands:
            self._check_told(command)
        self._check_nothing_is_left()

    @property
    def truths(self) -> int:
        """How many commands were neither killed nor turned away."""
        return sum(not each.was_killed and "does not answer" not in each.complained for each in self.commands)

    def end(self) -> None:
        """Leave no command behind, and a server that others can end."""
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
            command.process.wait()
        self._serve_again(at_once=True)

    def _until_over(self) -> None:
        ledger = self.books.ledger
        until(lambda: all(command.process.poll() is not None for command in self.commands), self._still)
        until(lambda: not ledger.entries(include_final=False), self._still)

    def _still(self) -> object:
        under_way = [(each.verb, each.name) for each in self.commands if each.process.poll() is None]
        return under_way, self.books.ledger.entries(include_final=False), self.server.said()

    def _check_told(self, command: Command) -> None:
        """See that a command that nobody killed said and did what it should have."""
        if command.was_killed:
            return
        code, lines = command.process.returncode, command.said.split()
        words = (command, code, command.said, command.complained)
        assert "Traceback" not in command.complained, words
        entry = self._entry(command.name)
        if "does not answer" in command.complained:  # It came while there was no server.
            assert code == 125, words
            assert command.verb not in {"run", "submit"} or entry is None, words
            return
        assert entry is not None, words
        expected = 125 if entry.job.exit_code is None else entry.job.exit_code
        if command.verb == "submit":
            assert (code, lines) == (0, [entry.job.id]), words
        elif command.verb == "wait":
            assert (code, lines) == ((0, [str(expected)]) if expected != 125 else (code, lines)), words
        else:
            assert code == (expected if command.verb == "run" else 0), words
            self._check_output(command, entry, lines)

    def _check_output(self, command: Command, entry: Entry, lines: list[str]) -> None:
        whole = [str(number) for number in range(1, command.line_count + 1)]
        is_whole = self.books.fate(command.name) == WHOLE and entry.job.state is JobState.EXITED
        assert lines == (whole if is_whole else whole[: len(lines)]), (command, lines)

    def _check_nothing_is_left(self) -> None:
        for what in ("slices/*", "jobs/*"):
            left = list((self.place.path / "run").glob(f"*/{what}"))
            assert not left, left
        until(
            lambda: len(processes_of(self.place.path)) <= len(("server", "agent", "guard")),
            lambda: processes_of(self.place.path),
        )
        mounts = Path("/proc/self/mounts").read_text()
        assert f"{self.place.path}/" not in mounts, mounts
        if self.image is not None:
            ids = {entry.job.id for entry in self.books.ledger.entries(include_final=True)}
            words = ["docker", "ps", "--all", "--filter", "label=io.pgpu.job", "--format", '{{.Label "io.pgpu.job"}}']
            listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            assert not ids & set(listed)

    def _entry(self, name: str) -> Entry | None:
        entries = self.books.ledger.entries(include_final=True)
        return next((entry for entry in entries if entry.job.spec.name == name), None)

    def _keep_asking(self) -> None:
        self._serve_again()
        for command in [each for each in self.commands if each.verb == "submit" and each.process.poll() == 0]:
            if not any(each.name == command.name for each in self.commands if each is not command):
                self._begin(self.chance.choice(("wait", "logs")), command.name, command.line_count)
        while sum(command.process.poll() is None for command in self.commands) < ASKERS:
            self._ask()

    def _ask(self) -> None:
        name, line_count = f"storm-{secrets.token_hex(6)}", self.chance.randint(1, 8)
        verb, size = self.chance.choice(("run", "submit")), self.chance.choice(_SIZES)
        file, words = str(self.books.fates / name), ["--name", name, "--memory", size]
        if self.image is not None and self.chance.random() < 0.25:
            words += ["--image", self.image, "--volume", f"{self.books.fates}:/fates"]
            file = f"/fates/{name}"
        self._begin(verb, name, line_count, *words, "--", "sh", "-c", _SCRIPT, file, str(line_count))

    def _begin(self, verb: str, name: str, line_count: int, *words: str) -> None:
        given = {"wait": [name], "logs": ["--follow", name]}.get(verb, list(words))
        output = self.place.path / "said" / f"{name}.{verb}"
        with output.open("wb") as out, Path(f"{output}.err").open("wb") as errors:
            process = subprocess.Popen(
                [PGPU, verb, *given],
                env=self.place.environment,
                cwd=self.place.path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )
        self.commands.append(Command(verb, name, line_count, process, output))

    def _serve_again(self, *, at_once: bool = False) -> None:
        if self._restart_at_seconds is not None and (at_once or time.monotonic() >= self._restart_at_seconds):
            self._restart_at_seconds = None
            self.server.begin()

    def _kill_one(self) -> None:
        deadline = time.monotonic() + self.chance.uniform(0.0, 0.4)
        until(lambda: time.monotonic() > deadline)
        kinds: dict[str, Callable[[], bool]] = {
            "server": self._kill_server,
            "agent": lambda: self._orphan_all(agent(self.place.path / "run")),
            "guard": lambda: self._orphan_all(guard(self.place.path / "run")),
            "job": self._kill_job,
            "client": self._kill_client,
        }
        (kind,) = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if kinds[kind]():
            self.killed[kind] += 1

    def _kill_server(self) -> bool:
        """One that accepted something since it was started: else nothing but starts of Python would be killed."""
        count = len(self.books.states())
        if self._restart_at_seconds is not None or count <= self._jobs_before:
            return False
        self._jobs_before = count
        self.server.end(signal.SIGKILL)
        self._restart_at_seconds = time.monotonic() + self.chance.uniform(0.0, 1.0)
        return True

    def _orphan_all(self, holder: ProcessHolder | None) -> bool:
        self.books.orphaned.update(entry.job.id for entry in self._holding())
        return kill(holder)

    def _kill_job(self) -> bool:
        found = [entry for entry in self._holding() if entry.job.state is JobState.RUNNING]
        if not found:
            return False
        job = self.chance.choice(found).job
        self.books.killed.add(job.id)
        return kill(main_process(job.holder))

    def _kill_client(self) -> bool:
        """One that has asked for something already: the others are only a start of Python."""
        known = {entry.job.spec.name for entry in self.books.ledger.entries(include_final=True)}
        found = [each for each in self.commands if each.process.poll() is None and each.name in known]
        if not found:
            return False
        command = self.chance.choice(found)
        command.was_killed = True
        return kill(identify_running(command.process.pid))

    def _holding(self) -> list[Entry]:
        with self.books.ledger.view() as view:
            return list(view.holding())


@contextlib.contextmanager
def opened_storm(seed: int, image: str | None = None) -> Iterator[ServerStorm]:
    """Make a machine with a server, to be stormed."""
    with opened_place() as place:
        fates = place.path / "fates"
        fates.mkdir()
        with serving(place.path / "run", state_dir=place.path / "state") as server:
            place.environment["PGPU_HOST"] = server.host
            ledger = Ledger(place.path / "state" / "ledger.db")
            storm = ServerStorm(place, server, Books(ledger, fates, CAPACITY_BYTES), random.Random(seed), image)
            try:
                yield storm
            finally:
                storm.end()
                ledger.close()
