"""Every error message has a line in the reference, and the code that leads to it."""

import json
import re
from operator import attrgetter
from pathlib import Path

import pytest
from tests.unit.conftest import Run
from tests.unit.test_cli import BAD, validate
from tools.generate_reference import messages

from pgpu.cli.output.error_codes import code_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "errors.md").read_text("utf-8")
"""That it is current is checked with the other pages, in test_reference_docs.py."""


def test_each_message_has_a_code_of_its_own_and_one_anchor() -> None:
    assert len({each.code for each in messages()}) == len(messages())
    recognisable = sorted(each.code.lower() for each in messages() if each.is_recognisable)
    assert sorted(re.findall(r'<a id="(e[0-9a-f]{5})"></a>', PAGE)) == recognisable
    assert len(recognisable) > 0.9 * len(messages())


@pytest.mark.parametrize("value", ["x", "'it'", "9"])
def test_a_message_is_found_whatever_its_variables_are(value: str) -> None:
    known = {each.code: each for each in messages()}
    for each in filter(attrgetter("is_recognisable"), messages()):
        code = code_of(value.join(each.parts).strip())
        # Another message may have the same text with other variables; it has at least as much text of its own then.
        assert code is not None
        assert code == each.code or sum(map(len, known[code].parts)) >= sum(map(len, each.parts))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Segmentation fault",
        "the answer is 42",
        "ImportError: module 'x' is not found",
        "read /data: is a directory",
        "docker: Error response from daemon: conflict: it is in use",
        'exec: "train": executable file not found in $PATH',
        "OSError: [Errno 28] No space left on device: '/tmp/x'",
        "config.yaml cannot be read: permission denied",
        "no job control in this shell",
        "there is no space: /var is full",
        "RuntimeError: it failed: CUDA error: an illegal memory access was encountered",
        "service pods failed",
    ],
)
def test_a_message_of_another_program_has_no_code(text: str) -> None:
    assert code_of(text) is None


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--bogus"),
        ("bogus",),
        ("stop",),
        ("history", "a", "b"),
        ("ps", "-o"),
        ("run", "--gpus"),
        ("ps", "-n", "many"),
        ("cancel", "x", "--tiem"),
    ],
    ids=" ".join,
)
def test_a_message_of_the_parser_has_a_code(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(*words) in {2, 125}
    line = capsys.readouterr().err.splitlines()[0]
    found = re.search(r" \[(E[0-9a-f]{5})\]$", line)
    assert found, line
    assert f'<a id="{found[1].lower()}">' in PAGE


@pytest.mark.parametrize("words", [each[0] for each in BAD], ids=" ".join)
def test_an_error_ends_with_its_code(run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    run(*words)
    line = capsys.readouterr().err.splitlines()[0]
    found = re.search(r" \[(E[0-9a-f]{5})\]$", line)
    assert found or "0 jobs" in line or "has that much memory" in line, line
    assert not found or f'<a id="{found[1].lower()}">' in PAGE


def test_an_error_in_json_has_its_code(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("ps", "-o", "yaml", "--json")
    error = validate("error", capsys.readouterr().err)["error"]
    assert error["code"] == code_of(error["message"])
    assert json.dumps(error).count(error["code"]) == 1
