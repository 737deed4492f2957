"""kill -9 of anybody who takes part in sharing GPUs, while every way of sharing goes on at once.

Jobs with fair and strict shares, of several processes, under MPS, with `--sharing auto` in its turns, that oversubscribe, that
preempt and are preempted, in containers, and profiled, over three simulated GPUs and a server. After each kill the books must
balance (`sharing_books`); in the end a job of each kind runs at once and nothing is left: no slice, mount, socket, daemon or
process. The long form is benchmarks/sharing_storm.
"""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.forked_commands import PGPU
from tests.served import ServerProcess, serving
from tests.soak.sharing_books import Member, SharingBooks
from tests.soak.sharing_kinds import LIGHT, SEASONS, VICTIMS, WEIGHTS, WORKER, WORKER_IN_CONTAINER, Kind
from tests.system.conftest import Place, opened_place
from tests.system.storm_victims import agent, children, guard, helpers, kill, main_process, processes_of
from tests.unit.test_advising import PROFILE
from tests.waiting import until

from pgpu.advising.verification import Verdict, Way
from pgpu.app.client_factory import open_client
from pgpu.app.composition import make_engine
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.engine.admission.auto_sharing import keep_verdict
from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import history_name
from pgpu.engine.leases.parking_state import Stage, is_travelling, load_parking
from pgpu.errors import PgpuError
from pgpu.host.process_identity import identify_running
from pgpu.ledger import Entry
from pgpu.model import (
    ContainerHolder,
    JobSpec,
    JobState,
    Mount,
    ProcessHolder,
    SharingMode,
)
from pgpu.structs import replace
from pgpu.units import MIB

GPUS = "RTX 3090x3"
JOBS_AT_ONCE = 11

_KILLS_OF_A_SEASON = 12
_HELPER_SECONDS = 2.0
_AWAY_SECONDS = 240.0
_OVER_SECONDS = 400.0


@dataclass
class SharingStorm:
    """One machine on which everybody is killed."""

    place: Place
    server: ServerProcess
    engine: Engine
    client: Client
    books: SharingBooks
    chance: random.Random
    kinds: Mapping[str, Kind]
    killed: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    commands: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _live: set[str] = field(default_factory=set)
    _restart_at_seconds: float | None = None

    def rage(self, kills: int, seconds: float = float("inf")) -> None:
        """Kill so many processes, or for so long, and look after each."""
        until_seconds = time.monotonic() + seconds
        while self.killed.total() < kills and time.monotonic() < until_seconds:
            self._keep_busy()
            self._kill_one()
            self.books.check()
        self.calm()

    def rage_until_away(self) -> set[str]:
        """Kill until somebody has left its GPU with all that it had there, and return who: so long, nobody else is hit."""
        until_seconds = time.monotonic() + _AWAY_SECONDS
        while not (away := self.away()):
            assert time.monotonic() < until_seconds, f"nobody left its GPU in {_AWAY_SECONDS:.0f} s"
            self._keep_busy()
            self._kill_one()
            self.books.check()
        return away

    def calm(self) -> None:
        """Let everything end, run a job of each kind, and see that nothing is left."""
        self._serve_again(at_once=True)
        self._until_over()
        for kind in self.kinds:
            assert self._ask(kind), f"{kind} was not accepted: {self.server.said()}"
        self._until_over()
        self.books.close()
        self._check_nothing_is_left()

    def end(self) -> None:
        """Leave no command and no job behind, and a server that others can end."""
        for command in self.commands:
            if command.poll() is None:
                command.kill()
            command.wait()
        self._serve_again(at_once=True)

    def _until_over(self) -> None:
        """The books say when somebody takes too long; who waits for blind ones does not wait for ever."""
        until_seconds = time.monotonic() + _OVER_SECONDS
        while any(command.poll() is None for command in self.commands) or self._entries():
            self.books.check()
            assert time.monotonic() < until_seconds, f"{len(self._entries())} jobs are not over, and no book says why"
            self._pause(0.2)

    def _entries(self) -> list[Entry]:
        return list(self.engine.ledger.entries(include_final=False))

    def away(self) -> set[str]:
        """Return who has left its GPU now."""
        standings = {entry.job.id: load_parking(self.engine.places(entry.job.id).parking) for entry in self._entries()}
        return {job_id for job_id, at in standings.items() if at and at.travellers and at.stage is Stage.AWAY}

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        until(lambda: time.monotonic() > deadline)

    def _keep_busy(self) -> None:
        self._serve_again()
        self.commands = [command for command in self.commands if command.poll() is None]
        present = {entry.job.spec.name for entry in self._entries()}
        season = SEASONS[self.killed.total() // _KILLS_OF_A_SEASON % len(SEASONS)]
        weights = {kind: weight for kind, weight in {**WEIGHTS, **season}.items() if kind in self.kinds}
        for _ in range(JOBS_AT_ONCE - len(present)):
            (kind,) = self.chance.choices(list(weights), list(weights.values()))
            if len(self.commands) < 2 or self.kinds[kind].verb is None:
                self._ask(kind)

    def _ask(self, kind: str) -> bool:
        """Hand one job in; False where there is no server now, which a client would wait for."""
        if not self._is_served:
            return False
        wanted, name = self.kinds[kind], f"{kind.replace(' ', '-')}-{secrets.token_hex(4)}"
        file, worker = str(self.books.fates / name), str(WORKER)
        if wanted.image is not None:
            file, worker = f"/fates/{name}", WORKER_IN_CONTAINER
        python = "python3" if wanted.image is not None else sys.executable
        words = (python, worker, str(wanted.seconds), str(wanted.size_mib))
        environment = {"STORM_FILE": file, "STORM_CHILDREN": str(wanted.children)}
        self.books.members[name] = Member(name, time.monotonic(), moved_seconds=time.monotonic())
        self.asked[kind] += 1
        if wanted.verb is not None:
            self._begin(wanted, name, words, environment)
            return True
        spec = JobSpec(
            words,
            "process" if wanted.image is None else "docker",
            wanted.image,
            tuple(environment.items()),
            () if wanted.image is None else self._mounts(),
            "/",
            name=name,
        )
        try:
            job = self.client.submit(spec, wanted.request, wait_timeout_seconds=None)
        except PgpuError:
            return False
        if kind == "auto":
            self._know(job.signature)
        return True

    def _mounts(self) -> tuple[Mount, ...]:
        return (Mount(str(self.books.fates), "/fates"), Mount(str(WORKER), WORKER_IN_CONTAINER, "ro"))

    def _begin(self, kind: Kind, name: str, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
        options = ["--sharing", "time-slice", "--name", name, "--memory", f"{kind.request.memory_bytes // MIB}MiB"]
        for variable, value in environment.items():
            options += ["--env", f"{variable}={value}"]
        self.commands.append(
            subprocess.Popen(
                [PGPU, str(kind.verb), *options, "--", *words],
                env=self.place.environment,
                cwd=self.place.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def _know(self, signature: str) -> None:
        """Have `auto` bring these programs together under MPS, and find that two or three of them are better off in turns."""
        if signature in self._live:
            return
        self._live.add(signature)
        gpu = self.engine.gpus.gpus()[0]
        known = replace(
            PROFILE,
            signature=signature,
            gpu_name=history_name(gpu),
            owner_uid=os.getuid(),
            demands=LIGHT,
            footprint_bytes=0,
        )
        with self.engine.ledger.decision() as decision:
            decision.profiles.add(known, "0" * 12)
        for count in range(2, JOBS_AT_ONCE):
            verdict = Verdict(Way.TURNS, 0.5, time.time())
            keep_verdict(self.engine.ledger.facts, gpu, [signature] * count, verdict)

    def _serve_again(self, *, at_once: bool = False) -> None:
        if self._restart_at_seconds is not None and (at_once or time.monotonic() >= self._restart_at_seconds):
            self._restart_at_seconds = None
            if at_once:
                self.server.start()
            else:
                self.server.begin()

    def _kill_one(self) -> None:
        self._pause(self.chance.uniform(0.0, 0.8))
        ways: dict[str, Callable[[], bool]] = {
            "job": self._kill_job,
            "child": self._kill_child,
            "agent": lambda: self._orphan_all(agent(self._run)),
            "guard": lambda: self._orphan_all(guard(self._run)),
            "daemon": lambda: self._kill_mps(is_server=False),
            "mps server": lambda: self._kill_mps(is_server=True),
            "helper": self._kill_helper,
            "server": self._kill_server,
            "client": self._kill_client,
            "container": self._kill_container,
        }
        left = dict(VICTIMS)
        while left:
            (victim,) = self.chance.choices(list(left), list(left.values()))
            if ways[victim]():
                self.killed[victim] += 1
                return
            del left[victim]  # There is none now.

    @property
    def _run(self) -> Path:
        return self.place.path / "run"

    def _chosen(self, suits: Callable[[Entry], object]) -> Entry | None:
        with self.engine.ledger.view() as view:
            found = [entry for entry in view.holding() if suits(entry)]
        return self.chance.choice(found) if found else None

    def _member(self, entry: Entry) -> Member:
        return self.books.members[entry.job.spec.name or ""]

    def _hit(self, entry: Entry, how: str) -> None:
        """Note it before it is done. A client that dies in a kernel may fault the others of its server."""
        self._member(entry).hits.add(how)
        if entry.job.lease is not None and entry.job.lease.sharing is SharingMode.MPS and how == "job":
            self._hit_mps(entry.job.lease.slices[0].gpu_uuid)

    def _hit_mps(self, gpu_uuid: str) -> None:
        with self.engine.ledger.view() as view:
            for entry in view.holding():
                lease = entry.job.lease
                if lease is not None and lease.sharing is SharingMode.MPS and lease.slices[0].gpu_uuid == gpu_uuid:
                    self._member(entry).hits.add("mps")

    def _kill_job(self) -> bool:
        entry = self._chosen(lambda entry: entry.job.state is JobState.RUNNING)
        if entry is None:
            return False
        self._hit(entry, "job")
        return kill(main_process(entry.job.holder))

    def _kill_container(self) -> bool:
        entry = self._chosen(lambda entry: isinstance(entry.job.holder, ContainerHolder))
        if entry is None or not isinstance(entry.job.holder, ContainerHolder):
            return False
        self._hit(entry, "job")
        words = ["docker", "kill", entry.job.holder.container_id]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def _kill_child(self) -> bool:
        """One process of a slice that has several: the others go on."""
        entry = self._chosen(lambda entry: (entry.job.spec.name or "").startswith("many") and self._children(entry))
        return entry is not None and kill(identify_running(self.chance.choice(self._children(entry))))

    def _children(self, entry: Entry) -> list[int]:
        main = main_process(entry.job.holder)
        return [] if main is None else children(main.pid)

    def _orphan_all(self, holder: ProcessHolder | None) -> bool:
        with self.engine.ledger.view() as view:
            for entry in view.holding():
                self._hit(entry, "supervisor")
        return kill(holder)

    def _kill_mps(self, *, is_server: bool) -> bool:
        entry = self._chosen(lambda entry: entry.job.lease and entry.job.lease.sharing is SharingMode.MPS)
        if entry is None or entry.job.lease is None:
            return False
        pids = []
        with contextlib.suppress(FileNotFoundError):  # A slice goes while they are looked for.
            for path in self._run.glob("**/nvidia-cuda-mps-control.pid"):
                with contextlib.suppress(OSError, ValueError):
                    pids.append(int(path.read_text()))
        chosen = [child for pid in pids for child in children(pid)] if is_server else pids
        if not chosen:
            return False
        for gpu in self.engine.gpus.gpus():
            self._hit_mps(gpu.uuid)
        return kill(identify_running(self.chance.choice(chosen)))

    def _kill_helper(self) -> bool:
        """Who asks the driver for one step of a checkpoint lives for a moment: it is looked for while jobs are on their way."""
        self._ask("urgent")
        deadline = time.monotonic() + _HELPER_SECONDS
        while time.monotonic() < deadline:
            moving = [entry for entry in self._entries() if is_travelling(self.engine.places(entry.job.id).parking)]
            found = {pid for entry in moving if entry.supervisor for pid in helpers(entry.supervisor.pid)}
            if found and kill(identify_running(found.pop())):
                return True
        return False

    @property
    def _is_served(self) -> bool:
        return self.server.process.poll() is None and "listening at" in self.server.said()

    def _kill_server(self) -> bool:
        if not self._is_served:
            return False
        self.server.end(signal.SIGKILL)
        self._restart_at_seconds = time.monotonic() + self.chance.uniform(0.0, 1.0)
        return True

    def _kill_client(self) -> bool:
        found = [command for command in self.commands if command.poll() is None]
        return bool(found) and kill(identify_running(self.chance.choice(found).pid))

    def _check_nothing_is_left(self) -> None:
        runtime = self.engine.settings.runtime_directory
        until(lambda: not list(runtime.glob("slices/*")), lambda: list(runtime.glob("slices/*")))
        until(lambda: not list(runtime.glob("jobs/*")), lambda: list(runtime.glob("jobs/*")))
        until(lambda: not list(runtime.glob("mps/*/*/pipe")), lambda: list(runtime.glob("mps/*/*/pipe")))
        until(lambda: not list(runtime.glob("board/*")), lambda: list(runtime.glob("board/*")))
        own = len(("server", "agent", "guard"))
        until(lambda: len(processes_of(self.place.path)) <= own, lambda: processes_of(self.place.path))
        mounts = Path("/proc/self/mounts").read_text()
        assert f"{self.place.path}/" not in mounts, mounts
        if any(kind.image for kind in self.kinds.values()):
            words = ["docker", "ps", "--all", "--filter", "label=io.pgpu.job", "--format", '{{.Label "io.pgpu.job"}}']
            listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            assert not {entry.job.id for entry in self.engine.ledger.entries(include_final=True)} & set(listed)


@contextlib.contextmanager
def opened_sharing_storm(
    seed: int, kinds: Mapping[str, Kind], environment: Mapping[str, str] | None = None
) -> Iterator[SharingStorm]:
    """Make a machine with a server and three GPUs, to be stormed.

    Args:
        seed: Of what is drawn.
        kinds: Some of `KINDS`.
        environment: Of everything that pgpu starts, beside what is there.
    """
    with opened_place() as place:
        place.environment |= {"PGPU_SIMULATE": GPUS, **(environment or {})}
        fates, run, state = place.path / "fates", place.path / "run", place.path / "state"
        fates.mkdir()
        with serving(run, state_dir=state, simulate=GPUS, environment=environment) as server:
            place.environment["PGPU_HOST"] = server.host
            settings = Settings(state_dir=state, runtime_dir=run, simulate=GPUS)
            engine = make_engine(replace(settings, host="embedded"))
            client = open_client(replace(settings, host=server.host))
            books = SharingBooks(engine, fates)
            storm = SharingStorm(place, server, engine, client, books, random.Random(seed), kinds)
            try:
                yield storm
            finally:
                storm.end()
                engine.ledger.close()
