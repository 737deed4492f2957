"""Bad surroundings: one clear line, a hint where there is one, exit code 125, and nothing changed."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.conftest import Place

import pgpu

ANOTHER_UID = 4_242_424
"""Of no user."""

RUN = ("run", "--memory", "2GiB", "--", "true")
Spoil = Callable[[Place], tuple[str, ...]]


def _more_than_the_largest(_place: Place) -> tuple[str, ...]:
    return ("run", "--memory", "24GiB", "--", "true")


def _unknown_model(place: Place) -> tuple[str, ...]:
    place.environment["PGPU_SIMULATE"] = "GTX 9999"
    return RUN


def _no_gpu(place: Place) -> tuple[str, ...]:
    place.environment.pop("PGPU_SIMULATE")
    return RUN


def _state_directory_under_a_file(place: Place) -> tuple[str, ...]:
    (place.path / "file").write_text("")
    return ("--state-dir", str(place.path / "file" / "below"), *RUN)


def _state_directory_is_a_file(place: Place) -> tuple[str, ...]:
    (place.path / "file").write_text("")
    return ("--state-dir", str(place.path / "file"), *RUN)


def _corrupt_ledger(place: Place) -> tuple[str, ...]:
    place.run("ps")
    (place.path / "state" / "ledger.db").write_bytes(b"this is no database" * 1000)
    return RUN


def _newer_ledger(place: Place) -> tuple[str, ...]:
    place.run("ps")
    with sqlite3.connect(place.path / "state" / "ledger.db") as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    return RUN


def _bad_setting(place: Place) -> tuple[str, ...]:
    folder = place.path / "config" / "pgpu"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("headrom = 0\n")
    return RUN


def _no_tmpfs(place: Place) -> tuple[str, ...]:
    place.environment["PGPU_RUNTIME_DIR"] = "/proc"
    return RUN


def _unknown_image(place: Place) -> tuple[str, ...]:
    place.environment["DOCKER_HOST"] = f"unix://{place.path}/nobody-listens.sock"
    return ("run", "--memory", "2GiB", "--image", "no/such:image")


def _anothers_state_directory(place: Place) -> tuple[str, ...]:
    """Root with another user's HOME: a command that this user queued would be executed as root."""
    return ("--state-dir", str(_given_away(place.path / "anothers")), *RUN)


def _directory_of_another_above(place: Place) -> tuple[str, ...]:
    return ("--state-dir", str(_given_away(place.path / "home") / ".local" / "state"), *RUN)


def _state_directory_that_others_write(place: Place) -> tuple[str, ...]:
    place.run("ps")
    (place.path / "state").chmod(0o775)
    return RUN


def _ledger_that_others_write(place: Place) -> tuple[str, ...]:
    place.run("ps")
    (place.path / "state" / "ledger.db").chmod(0o620)
    return RUN


def _journal_of_another(place: Place) -> tuple[str, ...]:
    """SQLite recovers one of this name, too, before it reads the write-ahead log."""
    place.run("ps")
    journal = place.path / "state" / "ledger.db-journal"
    journal.touch()
    _given_away(journal)
    return RUN


def _settings_of_another(place: Place) -> tuple[str, ...]:
    folder = place.path / "config" / "pgpu"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("headroom = 0\n")
    _given_away(folder / "config.toml")
    return RUN


def _given_away(path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    if not path.exists():
        path.mkdir()
    os.chown(path, ANOTHER_UID, ANOTHER_UID)
    return path


CASES: list[tuple[Spoil, str, str]] = [
    (_more_than_the_largest, "24 GiB can never be granted", "at most"),
    (_unknown_model, "GTX 9999", "rtx-3090"),
    (_no_gpu, "no GPU was found", "--simulate"),
    (_state_directory_under_a_file, "file/below", ""),
    (_state_directory_is_a_file, "file is no directory", "--state-dir"),
    (_corrupt_ledger, "ledger", ""),
    (_newer_ledger, "newer", ""),
    (_bad_setting, "headrom is no setting", "headroom"),
    (_no_tmpfs, "/proc", "/dev/shm"),
    (_unknown_image, "container engine", ""),
    (_anothers_state_directory, f"anothers belongs to user {ANOTHER_UID}", "sudo -H"),
    (_directory_of_another_above, f"belongs to user {ANOTHER_UID}", "sudo -H"),
    (_state_directory_that_others_write, "state can be written by other users", "chmod go-w"),
    (_ledger_that_others_write, "ledger.db can be written by other users", "chmod go-w"),
    (_journal_of_another, f"ledger.db-journal belongs to user {ANOTHER_UID}", "sudo -H"),
    (_settings_of_another, f"config.toml belongs to user {ANOTHER_UID}", "sudo -H"),
]


@pytest.mark.parametrize(("spoil", "says", "hints"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_bad_surroundings_get_one_line_and_change_nothing(place: Place, spoil: Spoil, says: str, hints: str) -> None:
    words = spoil(place)
    before = _files(place.path)
    done = place.run(*words)
    assert done.returncode == 125, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert says in lines[0]
    assert len(lines) <= 2
    assert hints in done.stderr
    assert not [path for path in _files(place.path) - before if "/jobs/" in path or "/slices/" in path]


@pytest.mark.parametrize(
    "words",
    [
        *(["ps"], ["queue"], ["gpus"], ["top"], ["usage"], ["history"], ["waste"], ["advise", "true"]),
        *(["submit", "--memory", "1GiB", "true"], ["cancel", "x"], ["stop", "x"], ["wait", "x"], ["logs", "x"]),
        *(["admin", "quota"], ["admin", "token", "list"], ["install-runtime", "--config", "daemon.json"]),
        *(["serve", "--host", "unix:///nowhere/pgpu.sock"], ["dashboard", "--port", "0"]),
    ],
    ids=lambda words: words[0],
)
def test_every_verb_refuses_a_state_directory_of_another_user(place: Place, words: list[str]) -> None:
    """It may have been made by root, and put there by the user to whom the directory above it belongs."""
    place.run("ps")
    _given_away(place.path / "state")
    before = _files(place.path)
    done = place.run("--state-dir", str(place.path / "state"), *words)
    assert done.returncode == 125, done.stdout
    said, hint = done.stderr.splitlines()
    assert f"state belongs to user {ANOTHER_UID}" in said
    assert "sudo -H" in hint
    assert _files(place.path) == before


@pytest.mark.parametrize(
    "inside", ["", "kubernetes"]
)  # the kubelet makes the directory of a node's driver, and this one with it
def test_a_state_directory_that_was_made_with_mode_0755_is_closed_to_readers(place: Place, inside: str) -> None:
    (place.path / "state").mkdir(mode=0o755)
    (place.path / "state" / inside).mkdir(mode=0o755, exist_ok=True)
    assert place.run("ps").returncode == 0
    assert (place.path / "state").stat().st_mode & 0o777 == 0o700


def test_a_directory_of_other_files_stays_open_to_their_readers(place: Place) -> None:
    state = place.path / "state"
    state.mkdir(mode=0o755)
    (state / "kubernetes").mkdir(mode=0o755)
    (state / "of-others").write_text("")
    place.run("ps")
    place.run("doctor")
    assert state.stat().st_mode & 0o777 == 0o755


def test_errors_are_json_where_json_was_asked(place: Place) -> None:
    words = _more_than_the_largest(place)
    done = place.run(words[0], "--json", *words[1:])
    error = json.loads(done.stderr)["error"]
    assert done.returncode == error["exit_code"] == 125
    assert error["nearest_bytes"] > 0


def test_a_missing_library_is_named(place: Place) -> None:
    """Another installation of the same program, without its C libraries."""
    copy = place.path / "copy"
    shutil.copytree(Path(pgpu.__file__).parent, copy / "pgpu", ignore=shutil.ignore_patterns("_native", "__pycache__"))
    # An editable installation finds its package before all paths.
    code = (
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__];"
        f"sys.path.insert(0, {str(copy)!r}); from pgpu.cli.main import main; sys.exit(main())"
    )
    done = place.run_python("-c", code, *RUN)
    assert done.returncode == 125
    assert "is missing from this installation" in done.stderr.splitlines()[0]
    assert "make build" in done.stderr.splitlines()[1]
    assert place.run("ps", "--all", "--quiet").stdout == ""


def test_pgpu_inside_a_job_is_refused(place: Place) -> None:
    """Its GPU is a slice, and an engine that takes a slice for the GPU would mislead all others."""
    done = place.run("run", "--memory", "4GiB", "--", "pgpu", "run", "--memory", "2GiB", "--", "true")
    assert done.returncode == 125
    assert "inside a job of pgpu" in done.stderr


def test_a_slice_smaller_than_a_context_is_never_stored(place: Place) -> None:
    for _measured_before in (False, True):
        done = place.run("run", "--memory", "2MiB", "--", "true")
        assert done.returncode == 125
        said, hint = done.stderr.splitlines()
        assert "2 MiB cannot hold one CUDA context" in said
        assert "ask for more than" in hint
    assert place.run("ps", "--all", "--quiet").stdout == ""


def test_no_slice_is_made_smaller_than_a_context(place: Place) -> None:
    job_id = place.detach("shrinks", "2GiB", ("sleep", "600"))
    done = place.run("resize", "shrinks", "--memory", "2MiB")
    assert done.returncode == 125
    assert "cannot hold one CUDA context" in done.stderr
    assert place.job(job_id)["request"]["memory_bytes"] == 2 << 30


def _files(path: Path) -> set[str]:
    return {str(found) for found in path.rglob("*")}
