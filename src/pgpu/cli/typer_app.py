"""The command line for Typer: help, completion, errors of usage, and the verbs whose options are not rows.

Commands stand in titled sections, each with one uncut line of help, and are imported on first use: only `--help`, completion
and the reference pages import all of them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, cast

import typer
from typer.core import TyperGroup

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.option_table import (
    GLOBAL_OPTIONS,
    LISTS,
    OUTPUT,
    Option,
    OptionKind,
    Verb,
)
from pgpu.cli.options import typer_option
from pgpu.cli.verb_table import COMMANDS, VERBS, CommandEntry
from pgpu.errors import RequestError, UsageError

_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of Typer's usage errors, which Typer exports only through this subclass."""


def run(words: Sequence[str], invocation: Invocation) -> int | None:
    """Run one command line and return its exit code.

    Raises:
        RequestError: Words cannot be parsed.
        PgpuError: The verb failed.
    """
    command = typer.main.get_command(make_app())
    try:
        # Not standalone: Typer returns the code of `typer.Exit` and raises its own errors, instead of ending the process.
        result = command.main(words, prog_name="pgpu", standalone_mode=False, obj=invocation)
    except _UsageError as exc:
        # The words could not be parsed, so --json was not noted; behind "--" it would be the job's own option.
        own = words[: words.index("--")] if "--" in words else words
        invocation.as_json = "--json" in own or ("-o", "json") in pairwise(own)
        return _print_help(exc, own)
    except typer.Abort as exc:
        raise KeyboardInterrupt from exc
    return result if isinstance(result, int) else None


def _print_help(error: Exception, words: Sequence[str]) -> int:
    """Print the help of a group that was called without a command; raise any other usage error as one of pgpu.

    Raises:
        RequestError: Always, unless a group had no command. Typer's own exit code for those, 2, could be the job's.
    """
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return exits.OK
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    # click reads options before the verb as those of the group; behind it they are unknown.
    misplaced = next((option for option in ("--simulate", "--state-dir") if f"No such option: {option}" in text), None)
    if misplaced:
        hint = f"write pgpu {misplaced} … before the verb"
        raise RequestError(f"{misplaced} is an option of pgpu itself", hint=hint) from error
    # click does not tell where an option has no value; the first verb among the words is the one.
    verb = next((word for word in words if word in VERBS), None)
    where = context.command_path if context else " ".join(filter(None, ("pgpu", verb)))
    rows = context.command.params if context else getattr(VERBS[verb].verb() if verb else None, "options", ())
    lists = any(row.name == OUTPUT.name for row in rows)
    raise (UsageError if lists else RequestError)(text, hint=f"see `{where} --help`") from error


def make_app(entries: Mapping[str, CommandEntry] = VERBS) -> typer.Typer:
    """Return the application; verbs are imported when they are looked up."""
    return typer.Typer(
        name="pgpu",
        cls=group_of(entries),
        callback=_with_options(
            _set_flags,
            GLOBAL_OPTIONS,
            "Run programs in hard slices of GPU memory; a job that does not fit waits instead of failing.",
        ),
        epilog="An error message ends with its code; `man pgpu-errors` lists them.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        rich_markup_mode=None,
    )


def _set_flags(invocation: Invocation, *, simulate: str | None, state_dir: str | None, version: bool) -> None:  # noqa: ARG001 - its callback printed it
    invocation.flags.update(simulate=simulate, state_dir=state_dir)


def _with_options(function: Callable[..., int | None], rows: Sequence[Option], text: str | None) -> Callable[..., Any]:
    """Return a function for Typer, which reads options from its signature: one parameter for each row."""

    def command(context: typer.Context, **given: Any) -> int | None:
        invocation = context.ensure_object(Invocation)
        # Values from a default do not count as typed.
        sources = {row.name: context.get_parameter_source(row.name) for row in rows if row.flags}
        invocation.typed = frozenset(
            name for name, source in sources.items() if source and source.name == "COMMANDLINE"
        )
        lists = {row.name: tuple(given[row.name] or ()) for row in rows if row.kind in LISTS}
        return function(invocation, **{**given, **lists})

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    # `inspect.signature` prefers this attribute to the function's own parameters.
    command.__signature__ = inspect.Signature([context, *map(_parameter, rows)])  # type: ignore[attr-defined]
    command.__doc__ = text
    return command


def _parameter(row: Option) -> inspect.Parameter:
    default = row.default
    # Quantities stay text: Typer's own conversions know no units, and their errors do not name the remedy.
    kind: Any = {OptionKind.NUMBER: int, OptionKind.FLAG: bool}.get(row.kind, str)
    if row.kind in {OptionKind.WORD, OptionKind.WORDS}:
        kind, default = list[str] if row.kind is OptionKind.WORDS else str, inspect.Parameter.empty
    elif row.kind in LISTS:
        kind, default = list[str] | None, None
    elif default is None:
        kind, default = (bool, False) if row.kind is OptionKind.FLAG else (kind | None, None)
    annotation = Annotated[kind, typer_option(row)]
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _load(entry: CommandEntry, name: str) -> Any:
    """Import the module of a command and return the command that Typer makes of its attribute."""
    if entry.entries is not None:
        target: Any = typer.Typer(
            cls=group_of(entry.entries), help=entry.help, no_args_is_help=True, rich_markup_mode=None
        )
    else:
        target = entry.load()
    if isinstance(target, Verb):
        target = _with_options(target.function, target.options, target.function.__doc__)
    if isinstance(target, typer.Typer):
        # The name is that of the table: one `Typer` may stand there twice, for an alias.
        target.info.name = name
        target.info.cls = target.info.cls if isinstance(target.info.cls, type) else Group
        target.rich_markup_mode = None  # Typer would load rich for every help and error
        group = typer.main.get_group(target)
        group.hidden = entry.section is None
        return group
    # Typer makes a command only of a function that is registered: an application with this one command does that.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    # click stops at the first word that is no option, as `docker run` does; by default it reads options up to the end.
    context_settings = {"allow_interspersed_args": False} if entry.takes_command else None
    app.command(name, hidden=entry.section is None, context_settings=context_settings)(target)
    return typer.main.get_command(app)


class _LazyCommands(Mapping[str, Any]):
    """The commands of a group by name; `[]` imports one, iterating over names imports none."""

    def __init__(self, entries: Mapping[str, CommandEntry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._entries[name], name)
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
