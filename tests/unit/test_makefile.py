"""The front door stays small, and the pages name what it offers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
DESCRIBED = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))


def test_there_are_at_most_twenty_targets_and_help_lists_each() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == DESCRIBED
    assert len(DESCRIBED) <= 20


def test_pages_name_the_targets_that_a_newcomer_needs_and_none_that_is_missing() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"make ([a-z-]+)`|^make ([a-z-]+)$", (ROOT / name).read_text("utf-8"), re.MULTILINE))
        targets = {first or second for first, second in named}
        assert {"demo", "check", "test"} <= targets <= DESCRIBED
