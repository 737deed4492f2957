"""Options of verbs as rows of data, from which both parsers are made: `direct_parser` and Typer's in `typer_app`.

A verb is a function with the rows of its options, put together by `takes`:

    @takes(ALL, JSON)
    def ps(invocation: Invocation, *, include_final: bool, as_json: bool) -> None: ...

The function gets the invocation and one keyword argument for each row, whether it was typed or not; it returns its exit
code, or None for 0. Rows of arguments have no flags. Nothing here depends on Typer, which takes longer to import than a
short command runs.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from pgpu.structs import Struct


class OptionKind(Enum):
    """The type of an option's value."""

    TEXT = auto()
    QUANTITY = auto()
    """Text that a job file may also write as a number."""

    NUMBER = auto()
    FLAG = auto()
    TEXTS = auto()
    """Can be given several times."""

    VARIABLES = auto()
    """`KEY=VALUE`, several times; a job file may write a table."""

    COMMAND = auto()
    """An argument: any number of words behind the options."""

    WORDS = auto()
    """An argument of at least one word."""

    WORD = auto()
    """An argument of one word."""

    OPTIONAL_WORD = auto()
    """An argument of one word that may be left out."""


LISTS = {OptionKind.TEXTS, OptionKind.VARIABLES, OptionKind.COMMAND, OptionKind.WORDS}
"""Kinds whose values are tuples of texts."""

ARGUMENTS = {OptionKind.COMMAND, OptionKind.WORDS, OptionKind.WORD, OptionKind.OPTIONAL_WORD}
"""Kinds that are read from the words that belong to no flag."""


class Option(Struct, frozen=True):
    """One row: an option of a verb, or its argument."""

    name: str
    """The parameter of the verb's function."""

    kind: OptionKind
    flags: tuple[str, ...]
    """The long flag first; `--on/--off` for a flag that can also be denied; none for an argument."""

    help: str
    metavar: str | None = None
    variable: str | None = None
    """The environment variable that sets it where the flag is missing, by the setting of that name."""

    default: Any = None

    @property
    def initial(self) -> Any:
        """The value if it was not given."""
        if self.kind in LISTS:
            return ()
        return bool(self.default) if self.kind is OptionKind.FLAG else self.default


class Verb(Struct, frozen=True):
    """A command of pgpu whose options are rows."""

    function: Callable[..., int | None]
    options: tuple[Option, ...]


def takes(*options: Option) -> Callable[[Callable[..., int | None]], Verb]:
    """Make a verb of a function that has one keyword parameter for each of these options."""
    return lambda function: Verb(function, options)


AS_JSON = "as_json"
"""Name of each row of `--json`: once it was read, errors are JSON as well."""

JSON = Option(AS_JSON, OptionKind.FLAG, ("--json",), "Print one JSON object; errors are JSON on stderr.")
OUTPUT = Option(
    "output",
    OptionKind.TEXT,
    ("--output", "-o"),
    "wide: whole rows; json: as --json; name: names, of jobs without one their ids.",
    "wide|json|name",
)


def wants_json(values: Mapping[str, Any]) -> bool:
    """Whether options, by name, ask for JSON, so that errors are JSON as well."""
    return bool(values.get(AS_JSON)) or values.get(OUTPUT.name) == "json"


JOBS = Option("jobs", OptionKind.WORDS, (), "Ids, beginnings of ids, or names of jobs and arrays.", "JOB...")
ONE_JOB = Option("job", OptionKind.WORD, (), "Id, beginning of an id, or name of a job.", "JOB")
GRACE = Option(
    "grace",
    OptionKind.TEXT,
    ("--time", "-t"),
    "Time between SIGTERM and SIGKILL (PGPU_STOP_GRACE, 10s by default).",
    "TIME",
)
COMMAND = Option(
    "command",
    OptionKind.COMMAND,
    (),
    "The command; with --image the image's own by default.",
    "[--] COMMAND",
)

SIMULATE = Option(
    "simulate",
    OptionKind.TEXT,
    ("--simulate",),
    "Use simulated GPUs, such as 'RTX 3090' or 'RTX 3090x4'; kernels compute nothing (PGPU_SIMULATE).",
    "MODEL[xN]",
)
STATE_DIR = Option(
    "state_dir", OptionKind.TEXT, ("--state-dir",), "Directory of the ledger and the logs (PGPU_STATE_DIR).", "DIR"
)
VERSION = Option("version", OptionKind.FLAG, ("--version",), "Print the version.")
GLOBAL_OPTIONS = (SIMULATE, STATE_DIR, VERSION)
"""The options before the verb."""
