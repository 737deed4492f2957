"""Power fails at each moment at which a queue makes something durable: what was announced before is there after the boot.

The system calls of a queue's whole life are recorded once, then replayed up to each fsync. A cut leaves what is durable, half
of what was written since, or all of it.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.clearing import clear, kill_at_work
from tests.forked_commands import PGPU
from tests.soak.recorded_disk import RECORD, Cut, RecordedDisk
from tests.system.conftest import Place
from tests.waiting import DEADLINE_SECONDS

JOBS = {"first": (3, ("--memory", "1GiB", "--array", "1-3")), "second": (4, ("--gpus", "0"))}
"""Exit code and options of what is submitted, by name."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NEXT_BOOT = "11111111-2222-3333-4444-555555555555"


@dataclass(frozen=True)
class Seen:
    """What was announced to the outside before a cut."""

    accepted: frozenset[str]
    """Ids that `pgpu submit` printed."""

    runs: tuple[str, ...]
    """The id of a job for each run of its command."""

    codes: Mapping[str, str]
    """What `pgpu wait` printed, by the id that was accepted."""

    @classmethod
    def of(cls, lines: bytes) -> "Seen":
        found: dict[str, list[list[str]]] = defaultdict(list)
        for line in lines.decode().splitlines():
            what, *words = line.split()
            found[what].append(words)
        accepted = frozenset(word for words in found["accepted"] for word in words)
        runs = tuple(word for words in found["ran"] for word in words)
        return cls(accepted, runs, {words[0]: " ".join(words[1:]) for words in found["ended"]})


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[Place, list[Cut]]]:
    """Return a place and the cuts of its queue's life."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    root = Path(tempfile.mkdtemp(prefix="pgpu-cut-", dir="/dev/shm"))
    settings = {"STATE_DIR": root / "state", "RUNTIME_DIR": root / "run", "SIMULATE": "RTX 3090"}
    place = Place(root, {"PATH": "/usr/bin:/bin", **{f"PGPU_{name}": str(value) for name, value in settings.items()}})
    try:
        lines = ["set -e"]
        for name, (code, options) in JOBS.items():
            command = f"echo ran $PGPU_JOB_ID >>marks; exit {code}"
            lines += [
                f"{name}=$({PGPU} submit {' '.join(options)} -- sh -c '{command}')",
                f"echo accepted ${name} >>marks",
            ]
        lines += [f"codes=$({PGPU} wait ${name}); echo ended ${name} $codes >>marks" for name in JOBS]
        boot(place, {})
        run(place, *RECORD, str(root / "trace"), "sh", "-c", "\n".join(lines))
        yield place, list(RecordedDisk(root / "trace", root / "state", root / "marks").cuts())
    finally:
        clear(root)


def boot(place: Place, image: Mapping[str, bytes]) -> None:
    """Leave of the directories what a disk has, and nothing of what was in memory."""
    kill_at_work(place.path)
    for name in ("state", "run"):
        clear(place.path / name)
        (place.path / name).mkdir()
    for path, data in image.items():
        (place.path / "state" / path).parent.mkdir(parents=True, exist_ok=True)
        (place.path / "state" / path).write_bytes(data)
    (place.path / "marks").write_bytes(b"")


def run(place: Place, *command: str) -> str:
    done = subprocess.run(
        command,
        env=place.environment,
        cwd=place.path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(image: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the states of the jobs in an image's ledger, by id."""
    with tempfile.TemporaryDirectory() as name:
        for path in ("ledger.db", "ledger.db-wal", "ledger.db-journal"):
            if path in image:
                (Path(name) / path).write_bytes(image[path])
        with contextlib.closing(sqlite3.connect(Path(name) / "ledger.db")) as ledger:
            assert ledger.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            is_made = ledger.execute("SELECT count(*) FROM sqlite_master WHERE name = 'jobs'").fetchone()[0]
            return dict(ledger.execute("SELECT id, state FROM jobs")) if is_made else {}


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0, reason="another boot id needs a mount")
def test_no_accepted_job_and_no_announced_exit_code_is_lost(recorded: tuple[Place, list[Cut]]) -> None:
    place, cuts = recorded
    assert set(Seen.of(cuts[-1].seen).codes.values()) == {"3 3 3", "4"}
    checked = set()
    for cut in cuts:
        for image in cut.images.values():
            known = states(image)
            kind = (cut.seen, tuple(known.items()), tuple(sorted(path for path in image if path.startswith("spool/"))))
            if kind not in checked:
                checked.add(kind)
                boot(place, image)
                check_after_boot(place, Seen.of(cut.seen), known)
    assert len(checked) > len(cuts) / 2


def check_after_boot(place: Place, before: Seen, known: Mapping[str, str]) -> None:
    """Let all jobs run to their ends after the boot, and compare with what was announced before the cut."""
    (place.path / "boot-id").write_text(f"{NEXT_BOOT}\n")
    script = f"""
        mount --bind boot-id {BOOT_ID}
        ids=$({PGPU} ps --all --quiet)
        [ -z "$ids" ] || {PGPU} wait $ids >/dev/null
        exec {PGPU} ps --all --json
    """
    jobs = {job["id"]: job for job in json.loads(run(place, "unshare", "--mount", "sh", "-ec", script))["jobs"]}
    later = Counter(Seen.of((place.path / "marks").read_bytes()).runs)
    assert jobs.keys() == known.keys()
    for accepted in before.accepted:
        members = [job for job in jobs.values() if accepted in {job["id"], job["place"]["array_id"]}]
        assert len(members) == (1 if accepted in jobs else 3)
        if accepted in before.codes:
            assert " ".join(str(job["exit_code"]) for job in members) == before.codes[accepted]
    for job_id, job in jobs.items():
        context = (job_id, known, before, later, job)
        assert later[job_id] + before.runs.count(job_id) <= 1, context
        if known[job_id] == "waiting":
            assert later[job_id] == 1, context
        if job["state"] != "exited":
            assert known[job_id] in {"starting", "running"}, context
            assert "bug" not in job["error"], context
