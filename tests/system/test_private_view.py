"""What a process job sees in its private view, as root and as an ordinary user: the host as it is, and its slice.

The launcher is driven directly here, so that it can run as another user than the tests.
"""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import make_bare_delivery
from tests.waiting import DEADLINE_SECONDS

from pgpu.libraries import LAUNCHER, library_path
from pgpu.runtimes.process_runtime import PRELOAD_PATH, can_make_private_views, shadows

_NOBODY = 65534
_READY = b"ready\n"

pytestmark = pytest.mark.userns


@dataclass(frozen=True)
class View:
    """A way to run scripts in a view, as one user."""

    user: int
    directory: Path
    launcher: Path
    before: str = "true"
    """A shell command that changes the machine as the launcher finds it, in a mount namespace of its own (root only)."""

    def run(self, *command: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
        """Run a command in a view of its own; asserts that the view could be made."""
        words = [*self._words(), "--", *command]
        control, report = os.pipe(), os.pipe()
        process = self._spawn(words, control[0], report[1], cwd)
        os.close(control[0])
        os.close(report[1])
        block = b"".join(f"{name}={value}".encode() + b"\0" for name, value in os.environ.items())
        os.write(control[1], struct.pack("<Q", len(block)) + block + b"G")
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
        told = os.read(report[0], 4096)
        os.close(control[1])
        os.close(report[0])
        assert told.startswith(_READY), told
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def shell(self, script: str) -> str:
        """Run a shell script and return what it wrote."""
        done = self.run("/bin/sh", "-c", script)
        return done.stdout

    def _words(self) -> list[str]:
        delivery = make_bare_delivery(Path(tempfile.mkdtemp(dir=self.directory)))
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, self.user, self.user, follow_symlinks=False)
        words = ["--slice", str(delivery.slice_directory), "--usage", str(delivery.usage_path)]
        words += ["--simulated", str(delivery.simulated_state_directory), "--preload-path", str(PRELOAD_PATH)]
        return words + [word for shim, path in shadows() for word in ("--shadow", f"{shim}={path}")]

    def _spawn(self, words: Sequence[str], control: int, report: int, cwd: str) -> subprocess.Popen[str]:
        is_other = self.user != os.geteuid()
        moving = f'{self.before} && exec "$0" "$@" 3<&{control}- 4>&{report}-'
        prefix = [] if self.before == "true" else ["unshare", "--mount"]
        return subprocess.Popen(
            [*prefix, "/bin/bash", "-c", moving, str(self.launcher), *words],
            pass_fds=(control, report),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            user=self.user if is_other else None,
            group=self.user if is_other else None,
            extra_groups=() if is_other else None,
        )


@pytest.fixture(params=["myself", "an ordinary user"])
def view(request: pytest.FixtureRequest) -> Iterator[View]:
    if not can_make_private_views():
        pytest.skip("this user may not make the namespaces of a private view here")
    is_other = request.param != "myself"
    if is_other and os.geteuid() != 0:
        pytest.skip("already tested: these tests run as an ordinary user")
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="pgpu-test-"))
    directory.chmod(0o755)
    launcher = Path(shutil.copy(library_path(LAUNCHER), directory / "launcher"))
    yield View(_NOBODY if is_other else os.geteuid(), directory, launcher)
    shutil.rmtree(directory)


def test_a_job_is_who_it_was_and_where_it_was(view: View) -> None:
    done = view.run("/bin/sh", "-c", "id -u; id -g; pwd; umask", cwd="/usr/share")
    umask = os.umask(0)
    os.umask(umask)
    assert done.stdout.split() == [str(view.user), str(view.user), "/usr/share", f"{umask:04o}"]


def test_the_file_system_is_the_hosts(view: View) -> None:
    entries = set(view.shell("ls -A /").split())
    assert entries == {entry.name for entry in Path("/").iterdir()} | {".pgpu"}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    assert view.shell("cat /proc/sys/kernel/random/boot_id; ls /sys/class >/dev/null && : </dev/null && echo ok") == (
        f"{boot_id}ok\n"
    )
    assert view.shell("stat -c %a%u /etc /usr/lib") == "".join(
        f"{Path(path).stat().st_mode & 0o7777:o}{_owner_as_seen(view, path)}\n" for path in ("/etc", "/usr/lib")
    )


def _owner_as_seen(view: View, path: str) -> int:
    """A user namespace shows owners that it does not map as nobody."""
    owner = Path(path).stat().st_uid
    return owner if view.user in {0, owner} else _NOBODY


def test_files_that_a_job_writes_are_the_hosts(view: View) -> None:
    target = view.directory / "written"
    view.shell(f"echo here > {target}")
    assert target.read_text(encoding="ascii") == "here\n"
    assert target.stat().st_uid == view.user


def test_the_shims_lie_over_every_place_of_the_drivers_libraries_as_one_inode(view: View) -> None:
    for shim, path in shadows():
        inodes = set(view.shell(f"stat -c %d:%i /.pgpu/{shim} {path}").split())
        assert len(inodes) == 1, f"{path} is not {shim}"


def test_the_slices_preload_file_lies_over_the_hosts(view: View) -> None:
    inodes = set(view.shell(f"stat -c %d:%i /.pgpu/ld.so.preload {PRELOAD_PATH}").split())
    assert len(inodes) == 1


def test_an_ordinary_user_can_neither_take_the_view_away_nor_write_the_limit(view: View) -> None:
    if view.user == 0:
        pytest.skip("root can; SECURITY.md says so")
    script = (
        "grep CapEff /proc/self/status; umount /.pgpu 2>&1 && echo unmounted;"
        "mount -o remount,bind,rw /.pgpu 2>&1 && echo remounted;"
        "mv /.pgpu /gone 2>&1 && echo moved; echo 1 > /.pgpu/limit && echo written;"
        "unshare --user --map-root-user --mount sh -c 'umount /.pgpu/limit; umount -l /.pgpu && echo unmounted inside'"
    )
    told = view.shell(script)
    assert "CapEff:\t0000000000000000" in told
    assert not {"unmounted", "remounted", "moved", "written"} & set(told.split()), told


def test_a_name_directly_under_the_root_is_refused_and_does_not_vanish(view: View) -> None:
    done = view.run("/bin/sh", "-c", "echo 1 > /lost-with-the-job")
    assert done.returncode != 0
    assert not Path("/lost-with-the-job").exists()


def test_what_is_mounted_below_a_covered_directory_is_still_there(view: View) -> None:
    if view.user != 0:
        pytest.skip("only root can mount something for this test")
    below = next(path for path in Path("/etc").iterdir() if path.is_dir() and not path.is_symlink())
    (view.directory / "mounted here").mkdir()
    (view.directory / "mounted here" / "mark").touch()
    machine = replace(view, before=f"mount --bind '{view.directory}/mounted here' {below}")
    assert machine.shell(f"ls {below}") == "mark\n"


def test_mounts_below_a_covered_directory_are_restored_once_with_what_is_mounted_in_them(view: View) -> None:
    if view.user != 0:
        pytest.skip("only root can mount something for this test")
    for name in ("layer/with space", "upper/deep", "lower"):
        (view.directory / name).mkdir(parents=True)
    (view.directory / "lower" / "mark").touch()
    etc = f"mount -t overlay x -o lowerdir=/etc:{view.directory}/layer /etc"
    upper = f"mount --bind {view.directory}/upper '/etc/with space'"
    lower = f"mount --bind {view.directory}/lower '/etc/with space/deep'"
    script = "ls '/etc/with space/deep'; grep -c '/etc/with.040space/deep ' /proc/self/mountinfo"
    # One lies in the directory that is covered, one in the overlay over it.
    assert replace(view, before=f"{etc} && {upper} && {lower}").shell(script) == "mark\n2\n"


def test_a_table_of_mounts_of_any_length_is_read_to_its_end(view: View) -> None:
    if view.user != 0:
        pytest.skip("only root can mount something for this test")
    below = next(path for path in Path("/etc").iterdir() if path.is_dir() and not path.is_symlink())
    (view.directory / "last").mkdir()
    (view.directory / "last" / "mark").touch()
    # A line has the path twice: 50 of them are more than the 64 KiB that the launcher reserves at first.
    long = "/".join(letter * 250 for letter in "abcd")
    many = f"for i in $(seq 50); do mkdir -p $i/{long} && mount --bind $i/{long} $i/{long} || exit; done"
    machine = replace(view, before=f"(cd {view.directory}; {many}) && mount --bind {view.directory}/last {below}")
    assert machine.shell(f"wc -c < /proc/self/mountinfo; ls {below}").split("\n", 1)[1] == "mark\n"


def test_a_preload_file_of_the_machine_is_covered_where_it_exists(view: View) -> None:
    if view.user != 0 or PRELOAD_PATH.exists():
        pytest.skip("only root can mount something for this test")
    etc = f"mount -t overlay x -o lowerdir=/etc:{view.directory}/layer /etc"
    (view.directory / "layer").mkdir()
    (view.directory / "layer" / PRELOAD_PATH.name).write_text("/no/such/library.so\n", encoding="ascii")
    inodes = set(replace(view, before=etc).shell(f"stat -c %d:%i /.pgpu/ld.so.preload {PRELOAD_PATH}").split())
    assert len(inodes) == 1


def test_nothing_that_is_mounted_in_a_view_reaches_the_machine(view: View) -> None:
    told = view.shell("mount -t tmpfs x /mnt && echo mounted; cut -d' ' -f5 /proc/self/mountinfo")
    assert "/.pgpu" in told.split()
    assert ("mounted" in told) == (view.user == 0)
    mounted = {line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()}
    assert not {"/mnt", "/.pgpu", "/newroot"} & mounted


@pytest.mark.parametrize(
    ("command", "number", "detail"),
    [("/no/such", 2, "/no/such"), ("no-such", 2, "no-such"), ("/etc/passwd", 13, "/etc/passwd"), ("/etc", 13, "/etc")],
)
def test_a_command_that_does_not_start_is_reported_with_the_kernels_reason(
    view: View, command: str, number: int, detail: str
) -> None:
    control, report = os.pipe(), os.pipe()
    process = view._spawn(["--", command], control[0], report[1], "/")
    os.close(control[0])
    os.close(report[1])
    os.write(control[1], struct.pack("<Q", 0) + b"G")
    process.communicate(timeout=DEADLINE_SECONDS)
    with os.fdopen(report[0], "rb") as told:
        assert told.read() == _READY + f"{number}\tcommand\t{detail}\n".encode()
    os.close(control[1])
    assert process.returncode == 125


def test_a_launcher_whose_runtime_went_away_runs_nothing(view: View) -> None:
    control, report = os.pipe(), os.pipe()
    process = view._spawn(["--", "/bin/echo", "ran"], control[0], report[1], "/")
    os.close(control[0])
    os.close(report[1])
    os.write(control[1], struct.pack("<Q", 0))
    os.close(control[1])
    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    os.close(report[0])
    assert (output, process.returncode) == ("", 125)
