"""Looking up what users name as volumes, where a file system of theirs answers late or never."""

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from pgpu.errors import RequestError, RuntimeUnavailableError
from pgpu.model import Account, Mount
from pgpu.runtimes.docker.staging import StagerRunner, Staging

ALICE, BOB = Account(61001, 61001, ()), Account(61002, 61002, ())

_APART = 'unshare --mount --propagation slave "$@"; exit $?'
IN_ITS_OWN_NAMESPACE = ["unshare", "--mount", "--propagation", "shared", "sh", "-c", _APART, "sh"]
"""Begins a command in a mount namespace whose mounts stay in it; the shell keeps the one that it was made from, as systemd does."""

_MNT_FORCE, _MNT_DETACH = 1, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def silent() -> Iterator[Path]:
    """A file system of Alice's that never answers."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root can mount a file system that hangs")
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/var/tmp"))
    path.chmod(0o755)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={ALICE.uid},group_id={ALICE.gid},allow_other"
    assert _LIBC.mount(b"silent", bytes(path), b"fuse", 0, options.encode()) == 0, os.strerror(ctypes.get_errno())
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.close(device)
        _LIBC.umount2(bytes(path), _MNT_DETACH)
        path.rmdir()


@pytest.fixture
def staging() -> Iterator[Staging]:
    runs = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    yield Staging(runs)
    assert list(runs.iterdir()) == []
    shutil.rmtree(runs)


class LookUp(threading.Thread):
    """One request that asks for a volume."""

    def __init__(self, staging: Staging, source: Path, account: Account) -> None:
        super().__init__(daemon=True)
        self._asked = (staging, source, account)
        self.error: Exception | None = None

    def run(self) -> None:
        staging, source, account = self._asked
        try:
            with staging.staged([Mount(str(source), "/data")], account, []):
                pass
        except (RequestError, RuntimeUnavailableError) as error:
            self.error = error


def test_a_user_keeps_few_threads_waiting_and_others_none(staging: Staging, silent: Path) -> None:
    hanging = [LookUp(staging, silent, ALICE) for _ in range(6)]
    for look_up in hanging:
        look_up.start()
    until(lambda: sum(look_up.is_alive() for look_up in hanging) == 2)
    ended = [look_up for look_up in hanging if not look_up.is_alive()]
    assert all("in time" in str(look_up.error) for look_up in ended)
    others = LookUp(staging, Path("/usr"), BOB)
    others.run()
    assert others.error is None
    own = LookUp(staging, Path("/usr"), ALICE)
    own.run()
    assert own.error is None
    assert sum(look_up.is_alive() for look_up in hanging) == 2
    assert _LIBC.umount2(bytes(silent), _MNT_FORCE | _MNT_DETACH) == 0
    for look_up in hanging:
        look_up.join()
    assert all(look_up.error for look_up in hanging)


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    """Hold as many as a server that many callers follow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    held = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
    try:
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_with_many_connections_looks_volumes_up_too(staging: Staging) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root opens volumes for others")
    with many_descriptors(1100), staging.staged([Mount("/usr", "/d")], ALICE, []) as (mounted,):
        assert (Path(mounted.source) / "bin").exists()


class Interrupted(StagerRunner):
    """Look-ups whose waiting fails."""

    def _ends_slowly(self, _pidfd: int, _uid: int | None) -> bool:
        raise OSError(errno.ENOMEM, "no memory is left")


def test_a_look_up_that_cannot_be_waited_for_leaves_no_process(staging: Staging, silent: Path) -> None:
    failing = Staging(staging.directory, Interrupted())
    with (
        pytest.raises(RuntimeUnavailableError, match="no process"),
        failing.staged([Mount(str(silent), "/d")], ALICE, []),
    ):
        pass
    with failing.staged([Mount("/usr", "/d")], ALICE, []):  # Whoever died since is reaped by the next one.
        until(lambda: "pgpu-stage" not in children())


def test_what_must_be_done_waits_though_a_user_has_no_slow_look_up_left() -> None:
    look_ups = Full()
    slow = ["sleep", "0.7"]
    assert look_ups.waited(slow, ALICE.uid) is None
    assert look_ups.waited(slow, None) == 0


class Full(StagerRunner):
    """Those of users who wait for as many slow ones as they may."""

    def waited(self, words: list[str], uid: int | None) -> int | None:
        self._slow[ALICE.uid] = self._slow[0] = 100
        return self._wait(os.spawnvp(os.P_NOWAIT, words[0], words), uid)


_STAGE_AND_BE_KILLED = """
import os, signal, sys
from pathlib import Path
from pgpu.model import Account, Mount
from pgpu.runtimes.docker.staging import Staging
with Staging(Path(sys.argv[1])).staged([Mount("/usr", "/d")], Account(61001, 61001, ()), []):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_swept(staging: Staging) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root opens volumes for others")
    subprocess.run([sys.executable, "-c", _STAGE_AND_BE_KILLED, str(staging.directory)], check=False)
    (left,) = staging.directory.iterdir()
    with staging.staged([Mount("/usr", "/d")], ALICE, []) as (own,):
        start_time_ticks, name = left.name.split("-")[1:]
        left.with_name(f"{os.getpid()}-{start_time_ticks}1-{name}").mkdir()  # Of one whose PID this process has got.
        staging.sweep()
        assert list(staging.directory.iterdir()) == [Path(own.source).parent]
        assert (Path(own.source) / "bin").exists()


def children() -> str:
    return subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "comm="], check=False, capture_output=True, text=True
    ).stdout


_TRY = """
import sys
from pathlib import Path
from pgpu.model import Account, Mount
from pgpu.runtimes.docker.staging import Staging
is_trial = sys.argv[2] == "trial"
with Staging(Path(sys.argv[1])).staged([Mount("/usr", "/d")], Account(61001, 61001, ()), [], is_trial=is_trial) as (own,):
    assert (Path(own.source) / "bin").exists()
"""


def test_volumes_are_tried_in_a_mount_namespace_from_which_no_engine_gets_them(staging: Staging) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root opens volumes for others")
    apart = [*IN_ITS_OWN_NAMESPACE, sys.executable, "-c", _TRY, str(staging.directory)]
    given, tried = (
        subprocess.run([*apart, purpose], check=False, capture_output=True, text=True) for purpose in ("start", "trial")
    )
    assert "stay in this process's namespace" in given.stderr
    assert (tried.returncode, tried.stderr) == (0, "")


def test_a_path_that_cannot_be_handed_on_is_refused(staging: Staging) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root opens volumes for others")
    for source in ("/x\0y", "/\ud800", "/" + "a" * (1 << 20)):
        with pytest.raises((RequestError, RuntimeUnavailableError)), staging.staged([Mount(source, "/d")], ALICE, []):
            pass
