"""Every error message has a line in the reference, and the code that leads to it."""

import json
import re
from pathlib import Path

import pytest
from tests.unit.conftest import Run
from tests.unit.test_cli import BAD, validate
from tools.generate_reference import messages

from pgpu.cli.output.error_codes import code_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "errors.md").read_text("utf-8")
MESSAGES = messages()
"""That the page is current is checked with the other pages, in test_reference_docs.py."""


def test_each_message_has_a_code_of_its_own_and_one_anchor() -> None:
    assert len({each.code for each in MESSAGES}) == len(MESSAGES)
    assert sorted(re.findall(r'<a id="(e[0-9a-f]{5})"></a>', PAGE)) == sorted(each.code.lower() for each in MESSAGES)


@pytest.mark.parametrize("value", ["x", "'it'", "9"])
def test_a_message_is_found_whatever_its_variables_are(value: str) -> None:
    known = {each.code: each for each in MESSAGES}
    for each in MESSAGES:
        code = code_of(value.join(each.parts).strip())
        # Another message may have the same text with other variables; it has at least as much text of its own then.
        assert code is not None
        assert code == each.code or sum(map(len, known[code].parts)) >= sum(map(len, each.parts))


def test_a_message_of_another_program_has_no_code() -> None:
    assert code_of("Segmentation fault") is None
    assert code_of("") is None


@pytest.mark.parametrize("words", [each[0] for each in BAD if "No such" not in each[1]], ids=" ".join)
def test_an_error_ends_with_its_code(run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    run(*words)
    line = capsys.readouterr().err.splitlines()[0]
    found = re.search(r" \[(E[0-9a-f]{5})\]$", line)
    assert found or "option" in line or "argument" in line or "0 jobs" in line or "has that much memory" in line, line
    assert not found or f'<a id="{found[1].lower()}">' in PAGE


def test_an_error_in_json_has_its_code(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("ps", "-o", "yaml", "--json")
    error = validate("error", capsys.readouterr().err)["error"]
    assert error["code"] == code_of(error["message"])
    assert json.dumps(error).count(error["code"]) == 1
