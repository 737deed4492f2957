"""Print figures about the form of the code: language, size of functions and modules, reuse of helpers, shared names.

Static: it parses the tracked files and runs none of them. Nothing fails on a figure. Comments such as `noqa` and
`type: ignore` are no prose and are left out.

    python tools/metrics.py [--json] [--list FIGURE]
"""

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "src/pgpu"
PERSONS = re.compile(
    r"\b(?:who|whom|whose|whoever|whomever|(?:no|some|any|every)(?:body|one)(?:'s|s)?|askers?)\b", re.IGNORECASE
)
SPEECH = re.compile(r"\b(?:say|says|said|saying|tell|tells|told|telling|hear|hears|heard|hearing)\b", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
NO_PROSE = re.compile(r"#\s*(?:noqa|type:|pragma|ruff:|!|fmt:)")
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
LONG_FUNCTION_LINES, TINY_MODULE_LINES, LONG_MODULE_LINES = 40, 60, 400
JOB_VERBS = ("submit", "stop", "cancel", "resize", "set_priority", "prioritise", "wait", "jobs", "job")
NOT_JOBS = {"Timer", "Mover", "Maintenance", "_Subscriber"}
"""Classes of which `cancel`, `stop` and `wait` are about a timer, a thread or a computation."""


@dataclass
class Module:
    """One parsed Python file."""

    path: str
    tree: ast.Module
    lines: int
    comments: list[str] = field(default_factory=list)
    comment_lines: int = 0

    @property
    def name(self) -> str:
        """Dotted name, for example `pgpu.engine.context`."""
        dotted = self.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")

    @property
    def is_generated(self) -> bool:
        return "_pb2" in self.path


def tracked(*patterns: str) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [each for each in done.stdout.split("\0") if each and (ROOT / each).is_file()]


def parse(path: str) -> Module:
    text = (ROOT / path).read_text("utf-8")
    module = Module(path, ast.parse(text), text.count("\n"))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not NO_PROSE.match(token.string):
            module.comments.append(token.string.lstrip("# "))
            module.comment_lines += 1
    return module


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield every bare string statement: docstrings, and the strings below a field or a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def prose_of(path: str) -> str:
    if path.endswith(".py"):
        module = parse(path)
        return "\n".join([*docstrings(module.tree), *module.comments])
    text = (ROOT / path).read_text("utf-8")
    if path.endswith((".c", ".h")):
        return "\n".join(match for match in C_COMMENT.findall(text) if not match.startswith('"'))
    return text


def functions_of(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in ast.walk(module.tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def imported_by(modules: list[Module]) -> dict[str, set[str]]:
    """Map each module of the package to the modules that import it, at run time or for types."""
    names = {each.name for each in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            found: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [f"{node.module}.{each.name}" for each in node.names]
                found = [each if each in names else node.module for each in found]
            elif isinstance(node, ast.Import):
                found = [each.name for each in node.names]
            for each in found:
                if each in names and each != module.name:
                    importers[each].add(module.name)
    return importers


def references(tree: ast.Module) -> Counter[str]:
    """Count how often each name is read, as a name or as an attribute; imports and definitions do not count."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
    return found


def used_once(modules: list[Module]) -> tuple[list[str], int, list[str], int]:
    """Return private helpers used exactly once in their module and their number, then the same of all functions."""
    per_module = {each.name: references(each.tree) for each in modules}
    everywhere = sum(per_module.values(), Counter())
    private, once_private, public, once_public = 0, [], 0, []
    for module in modules:
        for node in module.tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                private += 1
                if per_module[module.name][node.name] == 1:
                    once_private.append(f"{module.path}:{node.lineno} {node.name}")
            public += 1
            count = per_module[module.name] if node.name.startswith("_") else everywhere
            if count[node.name] == 1:
                once_public.append(f"{module.path}:{node.lineno} {node.name}")
    return once_private, private, once_public, public


def engine_in_signatures(modules: list[Module]) -> list[str]:
    # Docker's engine has a class of this name, too: only modules that import the engine's count.
    found = []
    for module in modules:
        names = {
            f"{each.module}.{name.name}"
            for each in ast.walk(module.tree)
            if isinstance(each, ast.ImportFrom)
            for name in each.names
        }
        if "pgpu.engine.engine.Engine" not in names or re.search(r"/engine/(supervisor|streams)/", module.path):
            continue
        for function in functions_of(module):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            kinds = [ast.unparse(each.annotation) for each in arguments if each.annotation]
            if any(re.search(r"\bEngine\b", each) for each in kinds):
                found.append(f"{module.path}:{function.lineno} {function.name}")
    return found


def shared_names(modules: list[Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        leaf = Path(module.path).stem
        if not leaf.startswith("__"):
            places[leaf].append(module.path)
    return {name: each for name, each in sorted(places.items()) if len(each) > 1}


def shared_classes(modules: list[Module]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module.path}:{node.lineno}")
    return {name: each for name, each in sorted(places.items()) if len(each) > 1}


def verb_places(modules: list[Module]) -> dict[str, list[str]]:
    """Return where the verbs on jobs are defined: methods and functions of clients, services, server, engine, the fake client."""
    rooms = re.compile(r"^(src/pgpu/(client|services|server|engine)/|tests/fakes/client\.py$)")
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        if rooms.match(module.path):
            classes = [each for each in ast.walk(module.tree) if isinstance(each, ast.ClassDef)]
            others = {id(each) for kind in classes if kind.name in NOT_JOBS for each in kind.body}
            for function in functions_of(module):
                if function.name in JOB_VERBS and id(function) not in others:
                    places[function.name].append(f"{module.path}:{function.lineno}")
    return dict(sorted(places.items()))


def per_thousand(pattern: re.Pattern[str], texts: list[str]) -> tuple[int, float]:
    words = sum(len(WORD.findall(each)) for each in texts)
    return words, 1000 * sum(len(pattern.findall(each)) for each in texts) / max(1, words)


def language(rows: dict[str, object]) -> None:
    groups = {
        "src": tracked("src/*.py"),
        "native": [*tracked("native/*.c", "native/*.h", "simgpu/*.c", "simgpu/*.h")],
        "fakes, benchmarks, tools": tracked("tests/fakes/*.py", "benchmarks/*.py", "tools/*.py"),
        "README, docs": [each for each in tracked("README.md", "docs/*.md") if "/decisions/" not in each],
    }
    for group, paths in groups.items():
        texts = [prose_of(each) for each in paths if "_pb2" not in each]
        words, persons = per_thousand(PERSONS, texts)
        _, speech = per_thousand(SPEECH, texts)
        rows[f"words of prose: {group}"] = words
        rows[f"persons per 1,000 words: {group}"] = round(persons, 2)
        rows[f"say, tell, hear per 1,000 words: {group}"] = round(speech, 2)


def commits(rows: dict[str, object]) -> None:
    done = subprocess.run(["git", "log", "-100", "--format=%s"], cwd=ROOT, capture_output=True, text=True, check=False)
    lengths = [len(each) for each in done.stdout.splitlines()]
    if lengths:
        rows["last 100 commit subjects: mean, longest"] = f"{statistics.mean(lengths):.0f}, {max(lengths)}"


def measure() -> tuple[dict[str, object], dict[str, list[str]]]:
    """Return the figures by name, and for those that have members the list of them."""
    everything = [parse(each) for each in tracked(f"{PACKAGE}/*.py")]
    modules = [each for each in everything if not each.is_generated]
    functions = [(each, function) for each in modules for function in functions_of(each)]
    rows: dict[str, object] = {}
    lists: dict[str, list[str]] = {}

    def counted(name: str, members: list[str], of: int | None = None) -> None:
        rows[name] = len(members) if of is None else f"{len(members)} of {of} ({100 * len(members) / max(1, of):.0f} %)"
        lists[name] = members

    language(rows)
    rows["files in src"] = len(everything)
    rows["lines in src"] = sum(each.lines for each in everything)
    rows["generated lines in src"] = sum(each.lines for each in everything if each.is_generated)
    rows["functions in src"] = len(functions) + sum(len(functions_of(each)) for each in everything if each.is_generated)
    rows["lines of a function's body: median"] = statistics.median(body_lines(each) for _, each in functions)
    long = [(body_lines(each), f"{module.path}:{each.lineno} {each.name}") for module, each in functions]
    counted(
        f"functions above {LONG_FUNCTION_LINES} lines", [where for size, where in long if size > LONG_FUNCTION_LINES]
    )
    own = [each for each in modules if not Path(each.path).stem.startswith("__")]
    counted(f"modules below {TINY_MODULE_LINES} lines", [each.path for each in own if each.lines < TINY_MODULE_LINES])
    counted(f"modules above {LONG_MODULE_LINES} lines", [each.path for each in own if each.lines > LONG_MODULE_LINES])
    importers = imported_by(modules)
    single = [each for each in own if len(importers[each.name]) == 1]
    counted("modules with one importer", [f"{each.path} <- {min(importers[each.name])}" for each in single])
    once_private, private, once_any, any_function = used_once(modules)
    counted("private module-level functions used once", once_private, private)
    counted("module-level functions used once", once_any, any_function)
    share = 100 * sum(each.comment_lines for each in modules) / sum(each.lines for each in modules)
    rows["comment lines"] = f"{share:.1f} %"
    counted("signatures with the whole Engine", engine_in_signatures(modules))
    names = shared_names(modules)
    counted("module names shared", [f"{name}: {', '.join(each)}" for name, each in names.items()])
    classes = shared_classes(modules)
    counted("class names shared", [f"{name}: {', '.join(each)}" for name, each in classes.items()])
    verbs = verb_places([*modules, *(parse(each) for each in tracked("tests/fakes/*.py"))])
    rows["places of a job verb"] = ", ".join(f"{verb} {len(each)}" for verb, each in verbs.items())
    lists["places of a job verb"] = [f"{verb}: {place}" for verb, each in verbs.items() for place in each]
    commits(rows)
    return rows, lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", metavar="FIGURE", help="print the members of the figure whose name contains this")
    words = parser.parse_args()
    rows, lists = measure()
    if words.list is not None:
        for name, members in lists.items():
            if words.list in name:
                print(f"{name}: {rows[name]}", *(f"  {each}" for each in members), sep="\n")
    elif words.json:
        print(json.dumps(rows, indent=2))
    else:
        for name, value in rows.items():
            print(f"{name:58} {value:>12,}" if isinstance(value, int) else f"{name:58} {value!s:>12}")


if __name__ == "__main__":
    main()
