"""An older pgpu is replaced in place under its jobs; no exit code, no byte and no slice is lost.

Two are: the one before the agent and the native monitor, and the one before shares over time. Each is built from the history, into
`build/`, where later runs find it.
"""

import json
import os
import pty
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.system.conftest import Place
from tests.waiting import until

RELEASES = {
    "before the agent": "62e58f98972607fcd7c12f61824194c6227addce",
    "before shares over time": "a511d0f14b348a119bf1b8919b1078bb46a93ba2",
}
REPOSITORY = Path(__file__).parents[2]
LINES = 2000
EXPECTED = "begin\n" + "".join(f"{number}\n" for number in range(1, LINES + 1))


# Allocates half of a slice of 1 GiB, waits, and allocates more: the second allocation fits, the third exceeds the slice.
ALLOCATOR = """
import ctypes, os, sys, time
cuda, device, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
allocate = lambda size: cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
results = [allocate(512 << 20)]
print("allocated", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
results += [allocate(128 << 20), allocate(512 << 20)]
sys.exit(0 if results == [0, 0, 2] else str(results))
"""


@pytest.fixture(scope="session", params=RELEASES.values(), ids=list(RELEASES))
def release_before(request: pytest.FixtureRequest) -> Path:
    """Return the package of that release, with its C libraries."""
    commit: str = request.param
    kept = REPOSITORY / "build" / f"release-{commit[:8]}"
    if not kept.exists():
        known = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=REPOSITORY, check=False)
        if known.returncode:
            pytest.skip(f"the history has no commit {commit[:8]}: git fetch --unshallow")
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="release-") as directory:
            _build(commit, Path(directory))
            shutil.move(Path(directory) / "src" / "pgpu", kept)
    return kept


def _build(commit: str, directory: Path) -> None:
    words = ["git", "archive", commit, "CMakeLists.txt", "native", "simgpu", "src"]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", directory], stdin=archive.stdout, check=True)
    assert archive.returncode == 0
    programs = Path(sys.executable).parent
    for words in (
        ["-S", ".", "-B", "built", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}"],
        ["--build", "built"],
        ["--install", "built", "--component", "pgpu", "--prefix", "src/pgpu/_native"],
    ):
        done = subprocess.run([programs / "cmake", *words], cwd=directory, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Installation:
    """A package that can be replaced in place, and the place in which its commands run."""

    place: Place
    attached: list[tuple[subprocess.Popen[str], Path, str, int]] = field(default_factory=list)
    """Each command under way, the file with its output, and what is expected there and as its exit code."""

    @property
    def package(self) -> Path:
        """The one on the path of commands and agents."""
        return self.place.path / "packages" / "pgpu"

    def install(self, package: Path) -> None:
        """Do what an installer does: remove the files of one release, then write those of the next."""
        self.package.parent.mkdir(exist_ok=True)
        if self.package.exists():
            self.package.rename(self.place.path / "removed")
            shutil.rmtree(self.place.path / "removed")
        shutil.copytree(package, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def command(self) -> tuple[str, ...]:
        # Not the interpreter of the virtual environment, where the checkout is installed.
        python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        return (str(python), "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")

    @property
    def environment(self) -> dict[str, str]:
        paths = (str(self.package.parent), sysconfig.get_path("purelib"))
        return {**self.place.environment, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words: str) -> str:
        """Run one command to its end and return its output."""
        done = subprocess.run(
            [*self.command, *words],
            env=self.environment,
            cwd=self.place.path,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def attach(
        self, *words: str, code: int, expected: str = EXPECTED, terminal: int | None = None
    ) -> subprocess.Popen[str]:
        """Start a command that stays attached to its job; the output of one with a terminal goes there."""
        path = self.place.path / f"output-{len(self.attached)}"
        with path.open("w") as output, path.with_suffix(".errors").open("w") as errors:
            process = subprocess.Popen(
                [*self.command, *words],
                env=self.environment,
                cwd=self.place.path,
                text=True,
                stdin=subprocess.PIPE if terminal is None else terminal,
                stdout=output if terminal is None else terminal,
                stderr=errors,
            )
        self.attached.append((process, path, expected if terminal is None else "", code))
        self.place.started.append(process)
        return process

    def jobs(self) -> dict[str, dict[str, object]]:
        """Return what `ps` shows of each job, by its name, or by its id if it has none."""
        return {job["name"] or job["id"]: job for job in json.loads(self.run("ps", "--all", "--json"))["jobs"]}


@pytest.fixture
def installation(place: Place) -> Iterator[Installation]:
    made = Installation(place)
    yield made
    live = made.run("ps", "--quiet").split()
    if live:
        made.run("stop", "--time", "0", *live)


def script(place: Place, code: int) -> tuple[str, ...]:
    """Return a command that writes before and after the upgrade, and its exit code."""
    go = place.path / "go"
    return ("sh", "-c", f"echo begin; while [ ! -e {go} ]; do sleep 0.05; done; seq {LINES}; exit {code}")


@pytest.mark.soak
def test_jobs_of_the_release_before_end_under_this_one_with_every_byte_and_exit_code(
    release_before: Path, installation: Installation
) -> None:
    place = installation.place
    installation.install(release_before)
    # Running: attached, with an input, with a terminal, detached, and of an array.
    for code in (0, 3):
        installation.attach("run", "-m", "1GiB", "--name", f"attached-{code}", "--", *script(place, code), code=code)
    talker = installation.attach(
        *("run", "-i", "-m", "1GiB", "--name", "input", "--", "sh", "-c", "cat; exit 5"), code=5, expected="one\ntwo\n"
    )
    main, other = pty.openpty()
    installation.attach(
        "run", "-t", "-m", "1GiB", "--name", "terminal", "--", *script(place, 6), code=6, terminal=other
    )
    for code in range(5):
        installation.run("run", "-d", "-m", "1GiB", "--name", f"detached-{code}", "--", *script(place, code))
    allocator = (sys.executable, "-c", ALLOCATOR, str(place.path / "go"))
    installation.run("run", "-d", "-m", "1GiB", "--name", "slice", "--", *allocator)
    until(lambda: installation.run("logs", "slice") == "allocated\n")
    array = installation.run("submit", "-m", "1GiB", "--array", "0-3", "--", *script(place, 7)).split()[-1]
    running = ("attached-0", "attached-3", "input", "terminal", "slice", *(f"detached-{code}" for code in range(5)))
    until(lambda: {str(installation.jobs()[name]["state"]) for name in running} == {"running"})
    # Waiting: too large beside them, and behind another job.
    for code in range(4):
        installation.run("submit", "-m", "20GiB", "--name", f"waiting-{code}", "--", *script(place, code))
    installation.run("submit", "-m", "1GiB", "--name", "after", "--after", "waiting-0", "--", *script(place, 8))

    installation.install(REPOSITORY / "src" / "pgpu")
    migrated = installation.jobs()
    assert len(migrated) >= 19
    assert {str(migrated[name]["state"]) for name in running} == {"running"}
    assert list((place.path / "state").glob("*.version-*"))  # the ledger of before
    # The commands of this release understand the streams of processes of that one.
    installation.attach("logs", "--follow", "detached-2", code=0)
    installation.run("submit", "-m", "1GiB", "--name", "new", "--", *script(place, 9))
    assert talker.stdin is not None
    talker.stdin.write("one\ntwo\n")
    talker.stdin.close()
    (place.path / "go").touch()

    os.close(other)
    terminal = b""
    with suppress(OSError):  # EIO: the command has ended
        while data := os.read(main, 65536):
            terminal += data
    os.close(main)
    assert terminal.replace(b"\r", b"") == EXPECTED.encode()  # each of two terminals adds one
    for process, path, expected, code in installation.attached:
        assert process.wait() == code
        assert path.read_text() == expected
    finals = until(
        lambda: (
            (found := installation.jobs())
            and all(job["state"] in {"exited", "failed", "cancelled"} for job in found.values())
            and found
        )
    )
    assert finals
    expected_codes = {f"detached-{code}": code for code in range(5)} | {f"waiting-{code}": code for code in range(4)}
    expected_codes |= {"attached-0": 0, "attached-3": 3, "input": 5, "terminal": 6, "slice": 0, "after": 8, "new": 9}
    assert {name: finals[name]["exit_code"] for name in expected_codes} == expected_codes
    members = [job for name, job in finals.items() if name not in expected_codes]
    assert [job["exit_code"] for job in members] == [7] * 4, array
    for name in (*(f"detached-{code}" for code in range(5)), *(f"waiting-{code}" for code in range(4)), "after", "new"):
        assert installation.run("logs", name) == EXPECTED, name
    for job in members:
        assert installation.run("logs", str(job["id"])) == EXPECTED
