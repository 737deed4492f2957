"""Options and output of the verbs that list: `ps`, `queue`, `gpus`, `history`.

A listing reads its reports, keeps those that match `--filter` and then `-n`, and prints them as a table, as one JSON document,
through a template, or as ids. `--watch` repeats that. Fields of `--filter` and `--format` are the columns of `-o wide`.
"""

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pgpu.cli.option_table import OUTPUT, Option, OptionKind, wants_json
from pgpu.cli.output import console
from pgpu.errors import UsageError
from pgpu.structs import Struct, replace
from pgpu.units import quoted

if TYPE_CHECKING:
    from pgpu.cli.output.documents import Document
    from pgpu.cli.output.plain_table import FittedTable, PlainTable

_OUTPUTS = ("wide", "json", "name")
_PLACEHOLDER = r"\{\{\s*\.(\w+)\s*\}\}"  # compiled at its first use: most listings have no template
_TABLE = "table "
_REFRESH_SECONDS = 2.0
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SIGNAL_EXIT_BASE = 128
_OTHER_SCREEN, _SCREEN_BEFORE = "\x1b[?1049h", "\x1b[?1049l"

_LIMIT = Option("limit", OptionKind.NUMBER, ("--last", "-n"), "Print only this many rows, the last ones.", "N")
QUIET = Option("is_quiet", OptionKind.FLAG, ("--quiet", "-q"), "Print ids only.")
LIST_OPTIONS = (
    OUTPUT,
    Option(
        "template",
        OptionKind.TEXT,
        ("--format",),
        "Print each row by a template such as '{{.Job}} {{.State}}'; behind the word table with titles.",
        "TEMPLATE",
    ),
    Option(
        "filters",
        OptionKind.TEXTS,
        ("--filter", "-f"),
        "Only rows whose column has this value, such as state=running or user=a*.",
        "COLUMN=VALUE",
    ),
    QUIET,
    _LIMIT,
    Option("watches", OptionKind.FLAG, ("--watch", "-w"), "Print again every 2 s until Ctrl-C."),
)
"""Beside `--json`, which stands last in each verb."""

OPTIONS_OF_FIRST = tuple(
    replace(_LIMIT, help="Print only this many rows, the first ones.") if row is _LIMIT else row for row in LIST_OPTIONS
)
"""Likewise of verbs whose most important rows stand above."""


class Kind(Struct, frozen=True):
    """What a verb lists."""

    table: "Callable[[Sequence[Any], bool], FittedTable]"
    """Lays reports out in their order, one row for each; the second argument asks for whole texts."""

    document: "Callable[[Sequence[Any]], Document]"
    identify: Callable[[Any], tuple[str, str]]
    """Returns id and name of a report; empty for one that cannot be named in another call."""

    keeps_first: bool = False
    """Whether `-n` keeps the first rows; else the last ones."""

    explain: "Callable[[Sequence[Any]], Iterable[PlainTable]] | None" = None
    """Lays reports out for people as several tables in place of the one of rows."""


class ListOptions(Struct, frozen=True, kw_only=True):
    """What was given of `LIST_OPTIONS` and `--json`."""

    output: str | None
    template: str | None
    filters: Sequence[str]
    is_quiet: bool
    limit: int | None
    watches: bool
    as_json: bool

    def __post_init__(self) -> None:
        """Check what can be checked before anything is read.

        Raises:
            UsageError: A value is wrong, or two of the options contradict each other.
        """
        if self.output not in {None, *_OUTPUTS}:
            raise UsageError(
                f"--output {quoted(str(self.output))} is no form of output", hint=f"write one of {', '.join(_OUTPUTS)}"
            )
        forms = {"--json": self.as_json, "--format": self.template is not None, "--quiet": self.is_quiet}
        forms[f"--output {self.output}"] = self.output is not None and not (self.as_json and self.output == "json")
        given = [flag for flag, is_given in forms.items() if is_given]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} contradict each other", hint="leave one of them out")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"--last {self.limit} is no number of rows", hint="write it like -n 10")
        for each in self.filters:
            if not each.partition("=")[1]:
                raise UsageError(f"--filter {quoted(each)} is not COLUMN=VALUE", hint="write it like state=running")
        if self.template is not None and not re.search(_PLACEHOLDER, self.template):
            raise UsageError(
                f"--format {quoted(self.template)} names no column",
                hint="write it like '{{.Job}} {{.State}}'; -o json prints JSON",
            )

    @property
    def wants_json(self) -> bool:
        """Whether one JSON document is printed."""
        return wants_json({"as_json": self.as_json, "output": self.output})

    @property
    def wants_table(self) -> bool:
        """Whether the output is for people."""
        return not (self.wants_json or self.is_quiet or self.template is not None or self.output == "name")

    def refuse_rows(self, why: str) -> None:
        """Refuse the options on rows where none are listed, only a table or JSON.

        Raises:
            UsageError: One of them was given.
        """
        if not (self.wants_table or self.wants_json) or self.filters or self.limit is not None or self.watches:
            raise UsageError(f"{why}, as a table or as --json", hint="leave out all other options of listings")

    def filtered_values(self, field: str) -> list[str]:
        """Return the values of the filters on one column."""
        return [value for name, _, value in (each.partition("=") for each in self.filters) if name.lower() == field]


def print_listing(
    options: ListOptions,
    kind: Kind,
    read: Callable[[], Sequence[Any]],
    notes: Callable[[], Iterator[str]] | None = None,
) -> None:
    """Print what a verb lists, once or until Ctrl-C.

    Args:
        options: As they were given.
        kind: How it is laid out.
        read: Reads the reports.
        notes: Lines for stderr below a table.

    Raises:
        UsageError: A filter or the template names no column.
    """
    if not options.watches:
        _print_once(options, kind, _selected(options, kind, read()))
        for line in notes() if notes is not None and options.wants_table else ():
            console.print_note(line)
        return
    has_screen = sys.stdout.isatty() and not options.wants_json
    before = signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(_SIGNAL_EXIT_BASE + number)
    )  # by way of `finally`
    try:
        print(_OTHER_SCREEN if has_screen else "", end="")
        _watch(options, kind, read)
    finally:
        print(_SCREEN_BEFORE if has_screen else "", end="", flush=True)
        signal.signal(signal.SIGTERM, before)


def _watch(options: ListOptions, kind: Kind, read: Callable[[], Sequence[Any]]) -> NoReturn:
    before: list[str] | None = None
    while True:
        reports = _selected(options, kind, read())
        if options.wants_json:
            console.print_json_line(kind.document(reports))
        elif (lines := list(_lines(options, kind, reports))) != before:
            _draw(lines)
            before = lines
        threading.Event().wait(_REFRESH_SECONDS)


def _selected(options: ListOptions, kind: Kind, reports: Sequence[Any]) -> Sequence[Any]:
    """Return the reports that match all filters; of several filters on one column one is enough."""
    if options.filters:
        from fnmatch import fnmatchcase

        table = kind.table(reports, True)
        wanted: dict[int, list[str]] = {}
        for each in options.filters:
            field, _, value = each.partition("=")
            wanted.setdefault(_place(table, field), []).append(value.lower())
        texts = [table.texts(row) for row in range(len(reports))]
        reports = [
            report
            for report, cells in zip(reports, texts, strict=True)
            if all(
                any(fnmatchcase(part, value) for value in values for part in _parts(cells[place]))
                for place, values in wanted.items()
            )
        ]
    if options.limit is None:
        return reports
    return reports[: options.limit] if kind.keeps_first else reports[max(0, len(reports) - options.limit) :]


def _parts(text: str) -> set[str]:
    # `exited 0` is found by its word, and `0,2`, the GPUs of a job, by each of them.
    return {text.lower(), *text.lower().replace(",", " ").split()}


def _place(table: "FittedTable", field: str) -> int:
    names = [column.field for column in table.fields]
    if field.lower() not in names:
        raise UsageError(f"there is no column {quoted(field)}", hint=f"the columns are {', '.join(names)}")
    return names.index(field.lower())


def _print_once(options: ListOptions, kind: Kind, reports: Sequence[Any]) -> None:
    if options.wants_json:
        console.print_json(kind.document(reports))
        return
    # One write: of a terminal's line-buffered stream each line would be one.
    text = "\n".join(_lines(options, kind, reports))
    if text:
        print(text)


def _lines(options: ListOptions, kind: Kind, reports: Sequence[Any]) -> Iterator[str]:
    if options.is_quiet or options.output == "name":
        for report in reports:
            word, name = kind.identify(report)
            if word:
                yield console.visible(name or word) if options.output == "name" else word
    elif kind.explain is not None and options.template is None:
        for table in kind.explain(reports):
            yield from console.table_lines(table)
    elif options.template is None:
        yield from console.table_lines(kind.table(reports, options.output == "wide"))
    else:
        yield from _formatted(options.template, kind.table(reports, True))


def _formatted(template: str, table: "FittedTable") -> Iterator[str]:
    # A shell passes `\t` on as two characters; Docker reads them likewise.
    text = template.removeprefix(_TABLE).replace("\\t", "\t").replace("\\n", "\n")
    places = {name: _place(table, name) for name in re.findall(_PLACEHOLDER, text)}

    def filled(cells: Sequence[str]) -> str:
        return re.sub(_PLACEHOLDER, lambda found: console.visible(cells[places[found[1]]]), text)

    rows = [table.texts(row) for row in range(len(table.rows))]
    if not template.startswith(_TABLE):
        yield from map(filled, rows)
        return
    from pgpu.cli.output.plain_table import PlainTable

    laid_out = PlainTable(heading=table.heading, has_header=False)
    for cells in ([column.title for column in table.fields], *rows):
        laid_out.add_row(*filled(cells).split("\t"))
    yield from map(str.rstrip, laid_out.lines())


def _draw(lines: Sequence[str]) -> None:
    """Draw a frame over the last one on a terminal, cut to its size; into a pipe, print it below the last one."""
    if not sys.stdout.isatty():
        print(*lines, "", sep="\n", flush=True)
        return
    import shutil

    width, height = shutil.get_terminal_size()
    most = height - 1
    shown = [*lines[: most - 1], f"… {len(lines) - most + 1} more lines"] if len(lines) > most else list(lines)
    text = "".join(f"{_cut_line(line, width)}{_REST_OF_LINE}\n" for line in shown)
    print(f"{_HOME}{text}{_REST_OF_SCREEN}", end="", flush=True)


def _cut_line(line: str, width: int) -> str:
    """Cut a line that may have colours to the terminal's width: a longer one would take several lines of the frame."""
    from pgpu.cli.output.plain_table import cell_width, cut

    parts = []
    for part in re.split(r"(\x1b\[\d*m)", line):
        is_style = part.startswith("\x1b")
        parts.append(part if is_style else cut(part, width) if width > 0 else "")
        width -= 0 if is_style else cell_width(part)
    return "".join(parts)
