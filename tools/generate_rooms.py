"""Draw the rooms of docs/architecture.md from import-linter's contracts in pyproject.toml, so that the picture cannot drift.

A layers contract becomes one Mermaid block diagram: each layer is a row and imports only rows below it. `--check` writes nothing and fails where the page is not current.
"""

import math
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
_DRAWN = re.compile(
    r"(<!-- rooms of (?P<container>[\w.]+): written by tools/generate_rooms.py -->\n).*?(<!-- end -->)", re.DOTALL
)


def layers_of(container: str) -> list[list[str]]:
    """Return a container's layers, the highest first, each a list of rooms that do not import one another.

    Raises:
        LookupError: No layers contract has this container.
    """
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and container in contract["containers"]:
            return [[room.strip(" ()") for room in re.split(r"[|:]", layer)] for layer in contract["layers"]]
    raise LookupError(f"no layers contract has the container {container}")


def diagram(layers: list[list[str]]) -> str:
    """Return a Mermaid block diagram with one row for each layer."""
    columns = math.lcm(*(len(rooms) for rooms in layers))
    rows = (" ".join(f'{room}["{room}"]:{columns // len(rooms)}' for room in rooms) for rooms in layers)
    return "\n".join(["```mermaid", "block-beta", f"  columns {columns}", *(f"  {row}" for row in rows), "```", ""])


def drawn(page: str) -> str:
    """Return a page with each of its diagrams drawn again."""
    return _DRAWN.sub(lambda match: match[1] + diagram(layers_of(match["container"])) + match[3], page)


def main(words: list[str]) -> int:
    old = PAGE.read_text("utf-8")
    new = drawn(old)
    if "--check" in words and new != old:
        print(f"{PAGE} is not current: run tools/generate_rooms.py")
        return 1
    if new != old:
        PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
