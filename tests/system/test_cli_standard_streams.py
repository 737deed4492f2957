"""What a caller may do to the standard streams of `pgpu`, or to its directory: a job runs, or one line says why not."""

import subprocess

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.waiting import DEADLINE_SECONDS


def _in_shell(place: Place, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script that knows `pgpu` as $0."""
    return subprocess.run(
        ["/bin/sh", "-c", script, PGPU],
        env=place.environment,
        cwd=place.path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_runs_whichever_stream_is_closed(place: Place, closing: str) -> None:
    done = _in_shell(
        place, f'"$0" run --interactive --memory 2GiB -- sh -c "cat; echo o; echo e >&2; exit 3" {closing}'
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == ("" if " >&-" in f" {closing}" else "o\n")
    assert ("e" in done.stderr.splitlines()) is ("2>&-" not in closing)


def test_a_full_disk_behind_the_output_is_one_line(place: Place) -> None:
    for verb in ("ps", "run --memory 2GiB -- echo x", 'logs $("$0" ps --all --quiet)'):
        done = _in_shell(place, f'"$0" {verb} >/dev/full')
        assert done.returncode == 125
        assert [line for line in done.stderr.splitlines() if "runs on a simulated" not in line] == [
            "pgpu: the output cannot be written: No space left on device [E0df74]"
        ]


def test_a_directory_that_is_gone_is_one_line(place: Place) -> None:
    done = _in_shell(place, 'mkdir gone; cd gone; rmdir ../gone; "$0" run --memory 2GiB -- true')
    assert done.returncode == 125
    assert done.stderr.splitlines()[0] == "pgpu: the current directory is gone [Ef6db0]"


@pytest.mark.parametrize("stdout_encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_bytes_that_are_no_text_are_shown_written_out_and_listed_as_they_were(
    place: Place, stdout_encoding: str
) -> None:
    place.environment["PYTHONIOENCODING"] = stdout_encoding
    assert _in_shell(place, """"$0" run --memory 2GiB -- true "$(printf 'a\\377b')" """).returncode == 0
    assert r"a\xffb" in _in_shell(place, '"$0" ps --all').stdout
    assert place.json("ps", "--all")["jobs"][0]["command"] == ["true", "a\udcffb"]
