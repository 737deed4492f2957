"""Groups of commands for Typer: commands in titled sections, each with one uncut line of help, imported on first use.

`pgpu run` imports the module of `run` alone. Only `--help`, completion and the reference pages import all of them.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = "Commands"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is defined, and how it is listed."""

    target: str
    """`module:attribute` below `pgpu.cli.verbs`; the attribute is a function or a `typer.Typer`."""

    section: str | None = COMMANDS
    """Title in the help of its group; None for a hidden alias."""

    takes_command: bool = False
    """Whether a job's command follows: options after its first word are then the job's own."""

    def load(self, name: str) -> Any:
        """Import the module and return the command that Typer makes of the attribute."""
        module, _, attribute = self.target.partition(":")
        target = getattr(importlib.import_module(f"pgpu.cli.verbs.{module}"), attribute)
        if isinstance(target, typer.Typer):
            target.info.name = name
            group = typer.main.get_group(target)
            group.hidden = self.section is None
            return group
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        context_settings = {"allow_interspersed_args": False} if self.takes_command else None
        app.command(name, hidden=self.section is None, context_settings=context_settings)(target)
        return typer.main.get_command(app)


class _LazyCommands(Mapping[str, Any]):
    """The commands of a group by name; `[]` imports one, iterating over names imports none."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._entries[name].load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Group(TyperGroup):
    """A group that never shortens the help lines of its commands, where Typer cuts them with `...`."""

    def section_of(self, name: str) -> str:
        """Return the title below which a command is listed."""
        return COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                line = (command.short_help or command.help or "").partition("\n")[0].rstrip(".")
                sections.setdefault(self.section_of(name), []).append((name, line))
        width = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])


def group_of(entries: Mapping[str, Entry]) -> type[Group]:
    """Return the class of a group with these commands, for `cls` of `typer.Typer`."""

    class TableGroup(Group):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**{**attributes, "commands": None})
            self.commands = _LazyCommands(entries)  # type: ignore[assignment]

        def section_of(self, name: str) -> str:
            return entries[name].section or COMMANDS

    return TableGroup
