"""The colours of the dashboard, `pgpu top` and figures: one table for light and one for dark, as `#rrggbb`.

CSS gets them as custom properties (`css_variables`), Textual and matplotlib read the fields. Slices of a GPU take `slices` in
turn. All text colours have a contrast of at least 4.5 to `paper` and `card`, all slices and series one of 3 (WCAG 2.2, AA).
The first hues are those of Okabe and Ito (2008) at other lightness, which colour-blind readers tell apart.
"""

from pgpu.structs import Struct


class Palette(Struct, frozen=True):
    """Colours for one background."""

    paper: str
    """Behind everything."""

    card: str
    """Behind a table, a card, a dialog."""

    ink: str
    """Text."""

    muted: str
    """Text that is less important."""

    line: str
    """Borders and grids."""

    free: str
    """The part of a bar that is not reserved."""

    accent: str
    """Links, focus and selection."""

    good: str
    warning: str
    bad: str
    """Text and marks of states: runs, waits, failed."""

    slices: tuple[str, ...]
    """Of a GPU, in turn."""

    reserved: str
    used: str
    share: str
    """Series of a chart: reserved and used memory, the share of the time."""


LIGHT = Palette(
    paper="#f7f9fb",
    card="#ffffff",
    ink="#17202a",
    muted="#566270",
    line="#dbe2e9",
    free="#e6ebf0",
    accent="#0b63bd",
    good="#0a7a55",
    warning="#9a5a00",
    bad="#b3261e",
    slices=("#0b6bcb", "#00855c", "#c2550a", "#8a4fd0", "#8f7200", "#b8336a"),
    reserved="#0b6bcb",
    used="#00855c",
    share="#c2550a",
)

DARK = Palette(
    paper="#10151b",
    card="#171e26",
    ink="#e6edf3",
    muted="#9aa7b4",
    line="#28323c",
    free="#26313b",
    accent="#5aa9f5",
    good="#3ecf9f",
    warning="#f0b45a",
    bad="#ff8a80",
    slices=("#5aa9f5", "#3ecf9f", "#f0a060", "#cf8cf0", "#d9c24a", "#f28ba8"),
    reserved="#5aa9f5",
    used="#3ecf9f",
    share="#f0a060",
)


def css_variables(palette: Palette) -> str:
    """Return declarations such as `--ink:#17202a;`, the slices as `--slice-0` and so on."""
    colours = {name: getattr(palette, name) for name in Palette.__struct_fields__ if name != "slices"}
    colours |= {f"slice-{number}": colour for number, colour in enumerate(palette.slices)}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
