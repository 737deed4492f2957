"""Print the cycles among the object files of a C library (`python -m tools.object_cycles FOLDER [--edges]`).

FOLDER is CMake's folder of the target's objects, such as build/native/native/shim/CMakeFiles/pgpu_shim.dir. An object
depends on another one if it uses a symbol that the other defines (`nm`). Left out are `main`, which initialises the
library, and assembler stubs. The exit code is 1 if there is a cycle.
"""

import argparse
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

LEFT_OUT = ("main", "stubs", "nvml_stubs")


def main() -> int:
    """Print the number of objects and edges, each cycle's objects, and with --edges every edge with its symbols."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the object files")
    parser.add_argument("--edges", action="store_true", help="print every edge and its symbols")
    arguments = parser.parse_args()
    graph = dependencies(arguments.folder)
    print(f"{len(graph)} objects, {sum(map(len, graph.values()))} edges")
    found = cycles(graph)
    for members in found:
        print(f"cycle of {len(members)}: {' '.join(members)}")
    if arguments.edges:
        for name, needed in graph.items():
            for other, symbols in sorted(needed.items()):
                print(f"{name} -> {other}: {', '.join(sorted(symbols))}")
    return 1 if found else 0


def dependencies(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return for each object the objects that it needs, with the symbols."""
    tables = {
        str(path.relative_to(folder)).removesuffix(".o").rpartition(".")[0]: symbols(path)
        for path in sorted(folder.rglob("*.o"))
    }
    tables = {name: table for name, table in tables.items() if Path(name).name not in LEFT_OUT}
    owner = {symbol: name for name, (defined, _) in tables.items() for symbol in defined}
    graph: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in tables}
    for name, (_, undefined) in tables.items():
        for symbol in undefined:
            if owner.get(symbol, name) != name:
                graph[name][owner[symbol]].add(symbol)
    return graph


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """Return the external symbols that an object defines and those that it uses."""
    listed = subprocess.run(["nm", "--extern-only", "--format=posix", path], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return {row[0] for row in rows if row[1] != "U"}, {row[0] for row in rows if row[1] == "U"}


def cycles(graph: Mapping[str, Mapping[str, object]]) -> list[list[str]]:
    """Return the strongly connected components of more than one object, largest first."""
    if _is_acyclic(graph):
        return []
    reached = {name: _reachable(graph, name) for name in graph}
    found = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(([*members] for members in found if len(members) > 1), key=len, reverse=True)


def _is_acyclic(graph: Mapping[str, Mapping[str, object]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def _reachable(graph: Mapping[str, Mapping[str, object]], start: str) -> set[str]:
    seen: set[str] = set()
    left: Sequence[str] = [start]
    while left:
        left = [other for name in left for other in graph[name] if other not in seen]
        seen.update(left)
    return seen


if __name__ == "__main__":
    raise SystemExit(main())
