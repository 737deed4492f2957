"""Programs that benchmarks hold as text import what exists: neither lint nor types look into a string."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if "import " in path.read_text("utf-8")]


def imports_in_strings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value):
            continue
        try:
            program = ast.parse(node.value)
        except SyntaxError:  # prose, or another language
            continue
        for each in ast.walk(program):
            if isinstance(each, ast.ImportFrom) and each.module and each.module.split(".")[0] in {"pgpu", "tests"}:
                yield from ((each.module, alias.name) for alias in each.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_in_a_string_imports_what_exists(path: Path) -> None:
    for module, name in imports_in_strings(path):
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_such_programs_are_found() -> None:
    """Otherwise the test above could not fail."""
    found = {module for path in FILES for module, _ in imports_in_strings(path)}
    assert "tests.fakes.control_plane" in found
