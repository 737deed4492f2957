"""Groups of commands for Typer: commands in titled sections, each with one uncut line of help, imported on first use.

`pgpu run` imports the module of `run` alone. Only `--help`, completion and the reference pages import all of them.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from pgpu.structs import Struct

COMMANDS = "Commands"


class CommandEntry(Struct, frozen=True):
    """Where a command is defined, and how it is listed."""

    target: str
    """`module:attribute` below `pgpu.cli.verbs`; the attribute is a function or a `typer.Typer`."""

    section: str | None = COMMANDS
    """Title in the help of its group; None for a hidden alias."""

    takes_command: bool = False
    """Whether a job's command follows: options after its first word are then the job's own."""

    entries: "Mapping[str, CommandEntry] | None" = None
    """The commands of a group that has no module of its own."""

    help: str | None = None
    """Likewise the group's own line."""

    def load(self, name: str) -> Any:
        """Import the module and return the command that Typer makes of the attribute."""
        if self.entries is not None:
            target = typer.Typer(
                cls=group_of(self.entries), help=self.help, no_args_is_help=True, rich_markup_mode=None
            )
        else:
            module, _, attribute = self.target.partition(":")
            target = getattr(importlib.import_module(f"pgpu.cli.verbs.{module}"), attribute)
        if isinstance(target, typer.Typer):
            # The name is that of the table: one `Typer` may stand there twice, for an alias.
            target.info.name = name
            target.info.cls = target.info.cls if isinstance(target.info.cls, type) else Group
            target.rich_markup_mode = None  # Typer would load rich for every help and error
            group = typer.main.get_group(target)
            group.hidden = self.section is None
            return group
        # Typer makes a command only of a function that is registered: an application with this one command does that.
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        # click stops at the first word that is no option, as `docker run` does; by default it reads options up to the end.
        context_settings = {"allow_interspersed_args": False} if self.takes_command else None
        app.command(name, hidden=self.section is None, context_settings=context_settings)(target)
        return typer.main.get_command(app)


class _LazyCommands(Mapping[str, Any]):
    """The commands of a group by name; `[]` imports one, iterating over names imports none."""

    def __init__(self, entries: Mapping[str, CommandEntry]) -> None:
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
    """A group that never shortens the help lines of its commands; Typer ends long ones with `...`."""

    sections: ClassVar[Mapping[str, str]] = {}
    """The titles below which commands are listed, by the names of these commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer calls it so
        """Return the names, in the order of the table."""
        # Typer's own method iterates over `items()`, which would import the modules of all commands.
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - likewise
        """Write each section's commands with the first lines of their help."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                line = (command.short_help or command.help or "").partition("\n")[0].rstrip(".")
                sections.setdefault(self.sections.get(name, COMMANDS), []).append((name, line))
        width = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])


def group_of(entries: Mapping[str, CommandEntry]) -> type[Group]:
    """Return the class of a group with these commands, for `cls` of `typer.Typer`."""

    class TableGroup(Group):
        sections: ClassVar = {name: entry.section or COMMANDS for name, entry in entries.items()}

        def __init__(self, **attributes: Any) -> None:
            # Typer collected the commands of the `Typer` object, which has none; the table takes their place.
            super().__init__(**{**attributes, "commands": None})
            self.commands = _LazyCommands(entries)  # type: ignore[assignment]

    return TableGroup
