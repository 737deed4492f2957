"""A table whose cells are words, never orders: neither to the terminal nor to the library that draws it."""

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from pgpu.cli.output.visible import visible


class PlainTable(Table):
    """A rich table that shows what its cells hold."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row; a text keeps its style, and a string is no markup."""
        super().add_row(*map(_shown, cells), style=style, end_section=end_section)


def _shown(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        return Text(visible(cell.plain), style=cell.style)
    return Text(visible(cell)) if isinstance(cell, str) else cell
