"""A table whose cells are plain text: markup and control characters are shown, never interpreted."""

from collections.abc import Collection

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from pgpu.cli.output.console import visible


class PlainTable(Table):
    """A rich table without lines."""

    def __init__(
        self, *columns: str, no_wrap: Collection[str] = (), is_numeric: bool = False, has_header: bool = True
    ) -> None:
        """Make the columns.

        Args:
            columns: Titles.
            no_wrap: Titles of the columns whose cells stay on one line.
            is_numeric: Whether all columns but the first are numbers: right-aligned, on one line.
            has_header: Whether the titles are shown.
        """
        super().__init__(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=has_header)
        for number, column in enumerate(columns):
            is_number = is_numeric and number > 0
            self.add_column(
                column,
                overflow="fold",
                no_wrap=is_number or column in no_wrap,
                justify="right" if is_number else "left",
            )

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row; a `Text` keeps its style, a string is not parsed as markup."""
        super().add_row(*map(_plain, cells), style=style, end_section=end_section)


def _plain(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        return Text(visible(cell.plain), style=cell.style)
    return Text(visible(cell)) if isinstance(cell, str) else cell
