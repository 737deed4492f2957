"""Writes docs/reference/cli.md from the Typer app and docs/reference/settings.md from the settings' own docstrings.

`--check` writes nothing and fails where a page is not current. The pages are never edited by hand.
"""

import ast
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from pgpu.app import settings
from pgpu.cli import exits
from pgpu.cli.typer_app import make_app

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
EXIT_CODES = (
    (exits.OK, "success; for `run`: the command's own code, here 0"),
    (exits.CHECK_FAILED, "`doctor` found a fault; `function invoke`: the function failed"),
    (exits.CALL_REFUSED, "`function invoke`: the function refused the request"),
    (exits.NOT_GRANTED_IN_TIME, "not granted in time"),
    (exits.PGPU_FAILED, "an error of pgpu's own, wrong options included"),
    (exits.NOT_EXECUTABLE, "the command cannot be executed"),
    (exits.NOT_FOUND, "the command does not exist"),
    (exits.CANCELLED, "Ctrl-C ended the wait"),
    (exits.READER_GONE, "the reader of pgpu's output closed it"),
)
BANNER = "<!-- Written by tools/generate_reference.py: change the program and run it again. -->\n"


def pages() -> dict[Path, str]:
    """Return the text of every page, by path."""
    return {REFERENCE / "cli.md": cli_page(), REFERENCE / "settings.md": settings_page()}


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


def main(words: list[str]) -> int:
    """Write the pages, or check them."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in words:
        for path in stale:
            print(f"{path} is not current: run tools/generate_reference.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages()[path], "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
