"""SECURITY.md's table is what docs/interception.toml says."""

import importlib.util
from pathlib import Path
from types import ModuleType

_TOOL = Path(__file__).parent.parent.parent / "tools" / "generate_interception_table.py"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_interception_table", _TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    tool = _tool()
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page()


def test_every_cell_has_one_of_the_known_words() -> None:
    tool = _tool()
    rows = tool.table().splitlines()[2:]
    assert len(rows) >= 15
    for row in rows:
        *_, container, view, preload = (cell.strip() for cell in row.strip("|").split("|"))
        assert {container, view, preload} <= set(tool.WORDS.values())
