"""Words that are no UTF-8, as Linux allows them everywhere: they reach the job as they are, and are shown written out."""

import json

from tests.system.conftest import Place

ODD = "odd\udcff"
"""Ends in a byte that is no text, as Python carries it."""

RUN = ("run", "--memory", "2GiB")


def test_a_command_of_odd_bytes_that_is_not_found_ends_its_job_as_any_other(either_place: Place) -> None:
    done = either_place.run(*RUN, "--", ODD)
    assert done.returncode == 127, done.stderr
    assert r"odd\xff: command not found" in done.stderr
    (job,) = either_place.json("ps", "--all")["jobs"]
    assert (job["state"], job["exit_code"]) == ("failed", 127)
    assert r"odd\xff: command not found" in job["error"]
    assert r"odd\xff" in either_place.run("ps", "--all").stdout


def test_arguments_variables_and_directories_of_odd_bytes_reach_the_job(either_place: Place) -> None:
    (either_place.path / ODD).mkdir()
    script = 'printf "%s %s %s %s" "$1" "$MINE" "$THEIRS" "${PWD##*/}" | od -An -c'
    words = ("--workdir", ODD, "-e", f"MINE={ODD}", "--", "sh", "-c", script, "sh", ODD)
    done = either_place.run(*RUN, *words, THEIRS=ODD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["o", "d", "d", "377"] * 4
    (job,) = either_place.json("ps", "--all")["jobs"]
    assert job["command"][-1] == ODD, "escaped in JSON, and the same bytes again for who reads it"


REFUSED = [
    ("submit", "--json", "--after", ODD, "--", "true"),
    ("submit", "--after", ODD, "--", "true"),
    ("submit", "--name", ODD, "--", "true"),
    ("submit", "--workdir", ODD, "--", "true"),
    ("submit", "--env-file", ODD, "--", "true"),
    ("submit", "--memory", ODD, "--", "true"),
    ("submit", "--array", ODD, "--", "true"),
    ("submit", f"{ODD}.toml"),
    ("run", "--memory", "1GiB", "--image", ODD, "true"),
    ("run", "--memory", "1GiB", "--image", "img", "--volume", f"/{ODD}:/x", "true"),
    *((verb, ODD) for verb in ("stop", "cancel", "wait", "logs", "history")),
    ("resize", ODD, "--memory", "1GiB"),
    ("admin", "quota", ODD),
    ("admin", "exclude", ODD),
    ("admin", "token", "revoke", ODD),
    ("--simulate", ODD, "gpus"),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from pgpu.cli.main import main
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(words)
    print(json.dumps([code, said.getvalue()]))
"""
"""Says of each command its exit code and what it complained of; in one process, for Python takes long to start."""


def test_odd_bytes_where_only_text_will_do_get_one_line_and_change_nothing(either_place: Place) -> None:
    done = either_place.run_python("-c", ONE_AFTER_ANOTHER, json.dumps(REFUSED))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for words, (code, said) in zip(REFUSED, answers, strict=True):
        assert (code, len(said.splitlines()) <= 2, "bug" in said) == (125, True, False), (words, said)
    assert "odd" in json.loads(answers[0][1])["error"]["message"]
    assert not either_place.json("ps", "--all")["jobs"]
