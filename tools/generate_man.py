"""Writes a man page for each verb, and one of all error messages: `python -m tools.generate_man FOLDER`. `make wheel` packs them.

The pages come from the same parameters as `--help` and docs/reference/cli.md, so they are never edited and not kept.
"""

import re
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer
from tools import generate_reference as reference

from pgpu.cli.typer_app import make_app
from pgpu.distribution import installed_version


def pages() -> dict[str, str]:
    """Return the text of every page, by its path such as `man1/pgpu-run.1`."""
    root: Any = typer.main.get_command(make_app())
    commands = {"pgpu": root, **dict(reference.verbs("pgpu", root))}
    found = {f"man1/{path.replace(' ', '-')}.1": "\n".join(_lines(path, commands)) + "\n" for path in commands}
    return {**found, "man7/pgpu-errors.7": "\n".join(_lines_of_errors()) + "\n"}


def _lines_of_errors() -> Iterator[str]:
    yield f'.TH PGPU\\-ERRORS 7 "" "pgpu {installed_version()}" "Error Messages"'
    yield ".SH NAME\npgpu\\-errors \\- error messages of pgpu by their codes"
    yield ".SH DESCRIPTION\nA message ends with its code. Three dots stand for what differs from call to call."
    for each in sorted(filter(attrgetter("is_recognisable"), reference.messages()), key=attrgetter("code")):
        yield f".TP\n.B {each.code}\n{_roff(each.text.strip())}"
        if each.hint:
            yield f".br\n{_roff(each.hint.strip())}"
    yield ".SH SEE ALSO\n.BR pgpu (1)"


def _lines(path: str, commands: dict[str, Any]) -> Iterator[str]:
    command, name = commands[path], path.replace(" ", "-")
    summary, *paragraphs = re.split(r"\n\n+", reference.help_text(command))
    parameters = command.get_params(command.make_context(path, [], resilient_parsing=True))
    yield f'.TH {_roff(name.upper())} 1 "" "pgpu {installed_version()}" "User Commands"'
    yield f".SH NAME\n{_roff(name)} \\- {_roff(' '.join(summary.split()).rstrip('.'))}"
    words = [reference.argument(each) for each in parameters if reference.is_argument(each)]
    words += ["COMMAND"] if hasattr(command, "commands") else []
    yield f".SH SYNOPSIS\n.B {_roff(path)}\n[OPTIONS] {_roff(' '.join(words))}".rstrip()
    if paragraphs:
        yield ".SH DESCRIPTION"
        yield "\n.PP\n".join(_roff(" ".join(each.split())) for each in paragraphs)
    listed = [each for each in parameters if not getattr(each, "hidden", False)]
    yield "\n".join([".SH OPTIONS", *(_option(each) for each in listed)])
    below = {other: each for other, each in commands.items() if other.rpartition(" ")[0] == path}
    if below:
        heads = [f".TP\n.B {_roff(other)}\n{_roff(each.help.partition(chr(10))[0])}" for other, each in below.items()]
        yield "\n".join([".SH COMMANDS", *heads])
    if path in {"pgpu", "pgpu run"}:
        codes = [f".TP\n.B {code}\n{_roff(meaning)}" for code, meaning in reference.EXIT_CODES]
        yield "\n".join([".SH EXIT STATUS", *codes])
    others = [path.rpartition(" ")[0], *below] if path != "pgpu" else below
    pages = [*(f".BR {_roff(other.replace(' ', '-'))} (1)" for other in others), ".BR pgpu\\-errors (7)"]
    yield ".SH SEE ALSO\n" + ",\n".join(pages)


def _option(parameter: Any) -> str:
    if reference.is_argument(parameter):
        head = f"\\fI{_roff(reference.argument(parameter))}\\fR"
    else:
        is_flag = getattr(parameter, "is_flag", False)
        value = "" if is_flag else f" \\fI{_roff(reference.argument(parameter))}\\fR"
        names = sorted(parameter.opts, key=len) + list(parameter.secondary_opts)
        head = ", ".join(f"\\fB{_roff(each)}\\fR{value}" for each in names)
    return f".TP\n{head}\n{_roff((parameter.help or '') + reference.default(parameter))}".rstrip()


def _roff(text: str) -> str:
    """Escape text for roff; words between backticks become bold."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("…", "...")
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", re.sub(r"^\.", r"\\&.", plain))


def main(words: list[str]) -> int:
    """Write the pages into a folder."""
    (folder,) = map(Path, words)
    for name, text in pages().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
