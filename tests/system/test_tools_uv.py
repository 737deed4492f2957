"""tools/uv gives uv the package indices that pip is configured with."""

import os
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "uv"
FILES = "global.extra-index-url='https://a.example https://b.example'\nglobal.find-links='/c\\n/d'\nglobal.index-url='https://file.example'\n"


@pytest.mark.parametrize(
    ("variables", "index"),
    [
        ({}, "https://file.example"),
        ({"PIP_INDEX_URL": "https://variable.example"}, "https://variable.example"),
        (
            {"PIP_INDEX_URL": "https://variable.example", "UV_DEFAULT_INDEX": "https://own.example"},
            "https://own.example",
        ),
    ],
)
def test_a_variable_comes_before_a_file_and_one_of_uv_before_both(
    variables: dict[str, str], index: str, tmp_path: Path
) -> None:
    for name, script in (
        ("pip", f"cat <<'END'\n{FILES}END"),
        ("uv", 'echo "$UV_DEFAULT_INDEX|$UV_INDEX|$UV_FIND_LINKS|$@"'),
    ):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    said = subprocess.run(
        [TOOL, "pip", "list"],
        env={**environment, "VENV": str(tmp_path), **variables},
        capture_output=True,
        check=True,
        text=True,
    )
    assert said.stdout == f"{index}|https://a.example https://b.example|/c /d|pip list\n"
