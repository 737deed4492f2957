"""Writes docs/reference: cli.md from the Typer app, settings.md from the settings' own docstrings, errors.md from all messages.

`--check` writes nothing and fails where a page is not current. The pages are never edited by hand.
"""

import ast
import html
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import typer

from pgpu import errors
from pgpu.app import settings
from pgpu.cli import exits
from pgpu.cli.typer_app import make_app

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
EXIT_CODES = (
    (exits.OK, "success; for `run`: the command's own code, here 0"),
    (exits.CHECK_FAILED, "`doctor` found a fault; `function invoke`: the function failed"),
    (
        exits.WRONG_USAGE,
        "`ps`, `queue`, `gpus`, `history`: wrong options; `function invoke`: the function refused the request",
    ),
    (exits.NOT_GRANTED_IN_TIME, "not granted in time, or stopped at its time limit"),
    (exits.PGPU_FAILED, "an error of pgpu's own, wrong options included"),
    (exits.NOT_EXECUTABLE, "the command cannot be executed"),
    (exits.NOT_FOUND, "the command does not exist"),
    (exits.CANCELLED, "Ctrl-C ended the wait"),
    (exits.READER_GONE, "the reader of pgpu's output closed it"),
)
CODES = Path(__file__).parent.parent / "src" / "pgpu" / "cli" / "output" / "error_codes.json"
BANNER = "<!-- Written by tools/generate_reference.py: change the program and run it again. -->\n"

SOURCE = Path(errors.__file__).parent
_VARIABLE = "…"
_DIGITS = 5
_LEAST_LETTERS = 12
"""Of a message with variable parts; one more where it begins with one."""

_OF_THE_PARSER = (
    ("No such option: ", ""),
    ("No such command ", ""),
    ("Missing argument ", ""),
    ("Got unexpected extra argument", "(", ")"),
    ("Option ", " requires an argument"),
    ("Invalid value for ", ": ", ""),
)
"""Messages of Typer, which are not in pgpu's text."""


@dataclass(frozen=True)
class Message:
    """One message with the class of its error."""

    kind: str
    parts: tuple[str, ...]
    """Texts between the variable parts; the first and the last may be empty."""

    hint: str | None

    @property
    def code(self) -> str:
        """`E` and five digits of a digest of its text; it changes only with the text."""
        return "E" + sha256("\0".join(self.parts).encode()).hexdigest()[:_DIGITS]

    @property
    def is_recognisable(self) -> bool:
        """Whether it has so much text of its own that hardly a message of another program matches."""
        letters = sum(each.isalnum() for part in self.parts for each in part)
        return len(self.parts) == 1 or letters >= _LEAST_LETTERS + (not self.parts[0])

    @property
    def text(self) -> str:
        return _VARIABLE.join(self.parts)


@cache
def cli_page() -> str:
    """Describe every verb, argument, option and exit code."""
    root: Any = typer.main.get_command(make_app())
    parts = [f"# The command line\n\n{BANNER}\n{inspect.cleandoc(root.help)}\n", *_verb_lines("pgpu", root)]
    for path, command in verbs("pgpu", root):
        parts += [f"\n## `{path}`\n", f"{help_text(command)}\n", *_verb_lines(path, command)]
    return "\n".join([*parts, "", aliases(root), exit_codes()])


def verbs(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path of words and the command of each verb and group that help lists."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{path} {name}", command
        if hasattr(command, "commands"):
            yield from verbs(f"{path} {name}", command)


def help_text(command: Any) -> str:
    """Return the help of a command without its indentation."""
    return "\n".join(line.strip() for line in inspect.cleandoc(command.help or "").splitlines())


def _verb_lines(path: str, command: Any) -> Iterator[str]:
    words = [f"{path} [OPTIONS]", *(argument(parameter) for parameter in command.params if is_argument(parameter))]
    yield f"```text\n{' '.join(words)}{' COMMAND' if hasattr(command, 'commands') else ''}\n```\n"
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows])


def is_argument(parameter: Any) -> bool:
    """Whether a parameter has no name on the command line."""
    return bool(parameter.param_type_name == "argument")


def argument(parameter: Any) -> str:
    """Return how help calls a value, such as `AMOUNT`."""
    return str(parameter.metavar or parameter.name.upper())


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "completion" in (parameter.name or ""):
        return None
    return f"| {_spelling(parameter)} | {_escaped(parameter.help or '')}{default(parameter)} |"


def _spelling(parameter: Any) -> str:
    if is_argument(parameter):
        return f"`{_escaped(argument(parameter))}`"
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or argument(parameter)}"
    names = sorted(parameter.opts, key=len) + list(parameter.secondary_opts)
    return ", ".join(f"`{_escaped(name + value)}`" for name in names)


def default(parameter: Any) -> str:
    """Return the sentence on the value of an option that is left out, or nothing."""
    value = parameter.default
    return f" Default: `{value}`." if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def aliases(root: Any) -> str:
    """List the earlier spellings, which work as before."""
    names = ", ".join(f"`pgpu {name}`" for name, command in root.commands.items() if command.hidden)
    return f"## Earlier spellings\n\nThese work as before, as do their options; `pgpu --help` does not list them: {names}.\n"


def exit_codes() -> str:
    """Describe exit codes."""
    lines = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES]
    intro = "`pgpu run` exits with its command's own code, 128 + n where signal n ended it. Else:"
    return "\n".join([f"## Exit codes\n\n{intro}\n", "| code | means |", "|---|---|", *lines, ""])


def settings_page() -> str:
    """Describe every setting with its key, variable and default."""
    lines = [f"# Settings\n\n{BANNER}", f"{_places()}\n"]
    for name, text in explanations().items():
        variable = settings.ENVIRONMENT_PREFIX + name.upper()
        lines.append(f"## `{name}`\n\nIn the environment: `{variable}`.\n\n{text}\n")
    return "\n".join(lines)


def _places() -> str:
    return (
        "Later places win: `/etc/pgpu/config.toml`, `$XDG_CONFIG_HOME/pgpu/config.toml` (`~/.config` where that is\n"
        "unset), the environment, flags. An unknown key is an error. For example:\n\n"
        '```toml\nstate_dir = "/srv/pgpu"\nheadroom = "512MiB"\nwait_timeout = "1h"\n```'
    )


def explanations() -> dict[str, str]:
    """Return each setting's docstring, by its name."""
    tree = ast.parse(inspect.getsource(settings))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    texts = {
        field.target.id: str(text.value.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    names = settings.NAMES
    return {name: " ".join(texts[name].split()) for name in names}


@cache
def messages() -> list[Message]:
    """Return every message once, by class in the order of `pgpu.errors`, then by text.

    A message is the first argument of a call of a subclass of `PgpuError`, if it is a text, an f-string, or a variable that is
    one in the same function. Others are messages of another program, or are made of parts elsewhere.
    """
    lines = inspect.getsource(errors).splitlines()
    classes = [name for name, _ in inspect.getmembers(errors, inspect.isclass)]
    kinds = sorted(
        classes, key=lambda name: next(at for at, line in enumerate(lines) if line.startswith(f"class {name}("))
    )
    found: dict[tuple[str, ...], Message] = {
        parts: Message("RequestError", parts, "see `… --help`") for parts in _OF_THE_PARSER
    }
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if not any(f"{kind}(" in text for kind in kinds):
            continue
        tree = ast.parse(text)
        scopes = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        constants = _assigned(tree.body)
        for scope in (*scopes, tree):
            nodes = list(ast.walk(scope))
            names = constants | _assigned(nodes if scope is not tree else ())
            for node in nodes:
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in kinds
                    and node.args
                ):
                    hints = [each.value for each in node.keywords if each.arg == "hint"]
                    hint = next((_VARIABLE.join(parts) for each in hints for parts in _texts(each, names)), None)
                    for parts in _texts(node.args[0], names):
                        is_better = parts not in found or (hint and not found[parts].hint)
                        if is_better and any(part.strip(" :;'\"") for part in parts):
                            found[parts] = Message(node.func.id, parts, hint)
    return sorted(found.values(), key=lambda each: (kinds.index(each.kind), each.text))


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return what each variable is assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _texts(node: ast.expr, names: Mapping[str, Sequence[ast.expr]]) -> Iterator[tuple[str, ...]]:
    """Yield the parts of a text between its variable ones; of a choice between several texts those of each."""
    choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
    if isinstance(node, ast.Name):
        choices = [each for each in names.get(node.id, ()) if not isinstance(each, ast.Name)]
    for each in choices:
        yield from _texts(each, names)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield (_plain(node.value),)
    elif isinstance(node, ast.JoinedStr):
        texts = (each.value if isinstance(each, ast.Constant) else "\0" for each in node.values)
        yield tuple(map(_plain, "".join(map(str, texts)).split("\0")))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        variable = [("", "")]
        for left in list(_texts(node.left, names)) or variable:
            for right in list(_texts(node.right, names)) or variable:
                yield (*left[:-1], left[-1] + right[0], *right[1:])


def _plain(text: str) -> str:
    # As `print_error` does with line ends; a space at an end belongs to the text.
    return re.sub(r"\s+", " ", text)


def errors_page() -> str:
    """Describe every error message with its code."""
    found = messages()
    intro = (
        "Behind a message stands its code, which is also `code` in JSON: `errors.md#e4f2a1` is the line of E4f2a1. `…` stands"
        " for what differs from call to call. A message without a code is another program's, or has too little text of its own"
        " to be recognised."
    )
    parts = [f"# Error messages\n\n{BANNER}\n{intro}"]
    for kind in dict.fromkeys(each.kind for each in found):
        cls = getattr(errors, kind)
        meaning = (inspect.getdoc(cls) or "").splitlines()[0]
        parts.append(
            f"\n## {kind}\n\n{meaning} Exit code {exits.of_error(cls(''))}.\n\n| | message | remedy |\n|---|---|---|"
        )
        parts += [_message_row(each) for each in found if each.kind == kind]
    return "\n".join([*parts, ""])


def _message_row(each: Message) -> str:
    code = f'<a id="{each.code.lower()}"></a>{each.code}' if each.is_recognisable else ""
    return f"| {code} | {_as_markdown(each.text)} | {_as_markdown(each.hint or '')} |"


def _as_markdown(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", html.escape(text, quote=False)).replace("|", "&#124;").strip()


def error_codes() -> str:
    """Return the texts of every message that can be recognised, by its code, as JSON."""
    found = {each.code: each.parts for each in messages() if each.is_recognisable}
    return f"{json.dumps(found, ensure_ascii=False, indent=0)}\n"


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "cli.md": cli_page,
    REFERENCE / "settings.md": settings_page,
    REFERENCE / "errors.md": errors_page,
    CODES: error_codes,
}


def main(words: list[str]) -> int:
    """Write the pages, or check them."""
    texts = {path: page() for path, page in PAGES.items()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in words:
        for path in stale:
            print(f"{path} is not current: run tools/generate_reference.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
