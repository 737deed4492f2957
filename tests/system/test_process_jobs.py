"""What only process jobs have: preloads of the user's own, daemons, and PIDs that the machine gives anew."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import RuntimeWorld, opened, pipes
from tests.waiting import DEADLINE_SECONDS

from pgpu.errors import RequestError
from pgpu.model import Mount, ProcessHolder
from pgpu.runtimes.process_runtime import ProcessRuntime, append_host_preloads, can_make_private_views, shadows
from pgpu.structs import replace

_THEIRS = "/no/such/library-of-the-user.so"


@pytest.fixture
def preloading(tmp_path: Path) -> Iterator[RuntimeWorld]:
    with opened(RuntimeWorld(ProcessRuntime(can_make_views=lambda: False), tmp_path, is_advisory=True)) as world:
        yield world


@pytest.fixture
def in_view(tmp_path: Path) -> Iterator[RuntimeWorld]:
    if not can_make_private_views():
        pytest.skip("this user may not make the namespaces of a private view here")
    with opened(RuntimeWorld(ProcessRuntime(), tmp_path)) as world:
        yield world


def test_a_users_own_preload_comes_after_ours(preloading: RuntimeWorld) -> None:
    started = preloading.shell("echo $LD_PRELOAD", environment=(("LD_PRELOAD", _THEIRS),))
    words = started.streams.read_to_end().decode().strip().split(":")
    assert [Path(word).name for word in words] == ["libpgpu.so", "libpgpu-ml.so", Path(_THEIRS).name]


def test_a_private_view_leaves_the_environment_alone(in_view: RuntimeWorld) -> None:
    started = in_view.shell("echo $LD_PRELOAD", environment=(("LD_PRELOAD", _THEIRS),))
    assert started.streams.read_to_end().decode().strip() == _THEIRS


def test_what_the_machine_preloads_comes_after_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("/.pgpu/libpgpu.so\n", encoding="ascii")
    append_host_preloads(ours, theirs)
    assert ours.read_text(encoding="ascii") == "/.pgpu/libpgpu.so\n"
    theirs.write_text("/opt/theirs.so\n", encoding="ascii")
    append_host_preloads(ours, theirs)
    assert ours.read_text(encoding="ascii") == "/.pgpu/libpgpu.so\n/opt/theirs.so\n"


def test_a_daemon_that_dropped_everything_but_its_view_ends_with_the_job(in_view: RuntimeWorld) -> None:
    script = "(setsid env -i /bin/sh -c 'echo $$; exec sleep 1000' &); echo started; read line"
    started = in_view.shell(script, wants_stdin=True)
    lines = started.streams.read_until(b"started").split()
    while len(lines) < 2:
        lines = started.streams.read_more().split()
    pid = next(int(line) for line in lines if line.isdigit())
    assert isinstance(started.running.holder, ProcessHolder)
    assert pid != started.running.holder.pid
    assert started.running.owns(pid)
    started.running.kill()
    started.streams.read_to_end()
    assert not started.running.owns(pid)


def test_other_processes_are_not_the_jobs(in_view: RuntimeWorld) -> None:
    started, other = (in_view.shell("echo ready; read line", wants_stdin=True) for _ in range(2))
    for one in (started, other):
        one.streams.read_until(b"ready")
    assert isinstance(other.running.holder, ProcessHolder)
    assert not started.running.owns(os.getpid())
    assert not started.running.owns(other.running.holder.pid)
    started.running.kill()
    assert other.running.is_alive()


def test_the_end_of_a_job_never_reaches_the_next_one(in_view: RuntimeWorld) -> None:
    """The kernel gives the names of what a job held (PIDs, namespaces) to the next one at once."""
    ended = [in_view.shell("exit 0") for _ in range(5)]
    for one in ended:
        assert one.wait() == 0
    following = [in_view.shell("echo ready; read line", wants_stdin=True) for _ in range(5)]
    for one in following:
        one.streams.read_until(b"ready")
    for one in ended:
        one.running.kill()
    assert all(one.running.is_alive() for one in following)


def test_a_job_of_an_earlier_boot_is_not_adopted(in_view: RuntimeWorld) -> None:
    started = in_view.shell("echo ready; read line", wants_stdin=True)
    started.streams.read_until(b"ready")
    holder = started.running.holder
    assert isinstance(holder, ProcessHolder)
    earlier = replace(holder, boot_id="00000000-0000-0000-0000-000000000000")
    streams = pipes()
    assert in_view.runtime.adopt(replace(started.job, holder=earlier), streams.job_side) is None
    streams.close()
    streams.close_job_side()


@pytest.mark.parametrize(
    "options",
    [
        {"image": "debian"},
        {"user": "nobody"},
        {"volumes": (Mount("/a", "/b"),)},
        {"working_directory": "/no/such/directory"},
        {"command": ()},
    ],
)
def test_what_only_containers_have_is_refused_with_a_hint(tmp_path: Path, options: dict[str, object]) -> None:
    spec = replace(RuntimeWorld(ProcessRuntime(), tmp_path).job(["true"]).spec, **options)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as caught:
        ProcessRuntime().check(spec)
    assert caught.value.hint


def test_every_place_of_a_library_is_listed_once_and_without_links() -> None:
    found = shadows()
    paths = [path for _, path in found]
    assert len(set(paths)) == len(paths)
    assert all(path == path.parent.resolve() / path.name for path in paths)
    assert {shim for shim, _ in found} == {"libpgpu.so", "libpgpu-ml.so"}


_FORBIDDEN = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec setpriv --bounding-set -all "$@"'
_ASK = (
    "from pgpu.runtimes.process_runtime import ProcessRuntime, why_no_private_view;"
    "print(ProcessRuntime().is_advisory(None), why_no_private_view())"
)


@pytest.mark.userns
def test_where_the_kernel_forbids_a_view_jobs_are_advisory_and_the_reason_is_told() -> None:
    words = ["unshare", "--user", "--map-root-user", "bash", "-c", _FORBIDDEN, "bash", sys.executable, "-c", _ASK]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS)
    reason = "the job's view cannot be made (namespace, unshare): Operation not permitted"
    assert done.stdout == f"True {reason}\n", done.stderr
