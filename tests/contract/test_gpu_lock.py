"""One ledger for each real GPU."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.errors import NodeError
from pgpu.model import Gpu

REAL = Gpu("GPU-1", "Real", 0, 1, "1", is_simulated=False)
OTHER = Gpu("GPU-2", "Real", 1, 1, "1", is_simulated=False)
SIMULATED = Gpu("GPU-3", "Simulated", 0, 1, "1", is_simulated=True)

Make = Callable[[str], GpuLocks]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[GpuLocks] = []

    def locks(ledger: str) -> GpuLocks:
        made.append(GpuLocks(tmp_path / ledger, [tmp_path / "locks"]))
        return made[-1]

    yield locks
    for each in made:
        each.close()


def test_all_processes_of_one_ledger_share_a_gpu(make: Make) -> None:
    for _ in range(3):
        make("a").hold([REAL])


def test_a_second_ledger_is_refused_and_told_who_holds_it(make: Make, tmp_path: Path) -> None:
    make("a").hold([REAL])
    with pytest.raises(NodeError, match=str(tmp_path / "a")) as refusal:
        make("b").hold([REAL])
    assert refusal.value.hint is not None
    make("b").hold([OTHER])


_OF_ANOTHER_MACHINE = """
mount -t tmpfs private "$1" && exec "$2" -c "$3" "$1/ledger" "$4"
"""


@pytest.mark.userns
def test_a_ledger_of_the_same_path_in_another_container_is_another(make: Make, tmp_path: Path) -> None:
    """Two containers that share the locks' directory each have their own /root/.local/state/pgpu/ledger.db."""
    (tmp_path / "state").mkdir()
    make("state/ledger").hold([REAL])
    words = [
        "sh",
        "-c",
        _OF_ANOTHER_MACHINE,
        "sh",
        str(tmp_path / "state"),
        sys.executable,
        HOLD,
        str(tmp_path / "locks"),
    ]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is shared out by the ledger" in done.stderr
    assert done.stdout == ""


def test_a_ledger_that_moved_with_its_directory_is_the_same(make: Make, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    make("state/ledger").hold([REAL])
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    make("elsewhere/ledger").hold([REAL])


def test_the_lock_is_free_once_the_last_process_lets_go(make: Make) -> None:
    first, second = make("a"), make("a")
    first.hold([REAL])
    second.hold([REAL])
    first.close()
    with pytest.raises(NodeError):
        make("b").hold([REAL])
    second.close()
    make("b").hold([REAL])
    with pytest.raises(NodeError):
        make("a").hold([REAL])


def test_simulated_gpus_need_no_lock(make: Make, tmp_path: Path) -> None:
    make("a").hold([SIMULATED])
    make("b").hold([SIMULATED])
    assert not (tmp_path / "locks").exists()


HOLD = """
import sys; from pathlib import Path
from pgpu.engine.leases.gpu_lock import GpuLocks; from pgpu.model import Gpu
locks = GpuLocks(Path(sys.argv[1]), [Path(sys.argv[2])])
locks.hold([Gpu("GPU-1", "Real", 0, 1, "1", is_simulated=False)])
print("held", flush=True); sys.stdin.read()
"""


def test_a_killed_holder_holds_nothing(make: Make, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / "a"), str(tmp_path / "locks")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(NodeError):
            make("b").hold([REAL])
        holder.kill()
    make("b").hold([REAL])


def test_many_processes_of_one_ledger_may_come_at_once(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / "a"), str(tmp_path / "locks")]
    holders = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    assert [holder.communicate()[0] for holder in holders] == [b"held\n"] * 4


def test_a_lock_that_is_a_link_is_not_followed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "GPU-1.lock").symlink_to(tmp_path / "target")
    with pytest.raises(NodeError):
        make("a").hold([REAL])
    assert not (tmp_path / "target").exists()


def test_no_directory_for_locks_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="no directory"):
        GpuLocks(tmp_path / "a", [tmp_path / "file" / "locks"]).hold([REAL])
