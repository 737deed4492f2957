"""The usage file belongs to the job: what it does to it costs the job itself, never its neighbours or the host."""

import signal
import subprocess

from tests.slice_world import GIB, MIB, SliceWorld, a_slice

_CUT = """
cu.begin()
cu.alloc(100 * MIB)
os.truncate(sys.argv[1], 0)
print("cut", flush=True)
print(outcome(lambda: cu.alloc(2048 * MIB)), flush=True)
"""


def _cut(world: SliceWorld) -> subprocess.CompletedProcess[str]:
    return world.run(_CUT, str(world.usage))


def test_a_process_under_which_the_usage_file_is_cut_gets_nothing_past_its_slice(one_gib: SliceWorld) -> None:
    done = _cut(one_gib)
    assert done.stdout.splitlines()[0] == "cut"
    assert done.returncode == -signal.SIGBUS
    assert done.stdout.splitlines()[1:] == []


def test_the_slice_serves_its_next_process_as_if_the_file_were_new(one_gib: SliceWorld) -> None:
    _cut(one_gib)
    assert one_gib.answer("cu.begin(); print(json.dumps(count_until_refused(lambda: cu.alloc(256 * MIB), 8)))") == [
        2,
        2,
    ]
    assert one_gib.use().peak_bytes <= GIB


def test_a_neighbour_s_slice_counts_on() -> None:
    hold = "cu.begin(); cu.alloc(600 * MIB); print('held', flush=True); sys.stdin.readline()"
    with a_slice(GIB) as theirs, a_slice(GIB) as ours:
        ours.write_limit(context_bytes=100 * MIB)
        with ours.running(hold):
            _cut(theirs)
            assert ours.use().used_bytes == 700 * MIB
            assert ours.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(300 * MIB))))") == 2
