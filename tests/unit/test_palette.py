"""The colours of page, terminal and figures."""

import re
from pathlib import Path

import pytest

from pgpu import palette
from pgpu.palette import DARK, LIGHT, Palette, css_variables


def _luminance(colour: str) -> float:
    # Source: WCAG 2.2, relative luminance.
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_and_marks_stand_out_from_what_is_behind_them(colours: Palette) -> None:
    for behind in (colours.paper, colours.card):
        for text in (colours.ink, colours.muted, colours.accent, colours.good, colours.warning, colours.bad):
            assert _contrast(text, behind) >= 4.5, (text, behind)
        for mark in (*colours.slices, colours.reserved, colours.used, colours.share):
            assert _contrast(mark, behind) >= 3, (mark, behind)


def test_no_other_module_has_colours_of_its_own() -> None:
    package = Path(palette.__file__).parent
    found = {
        path.relative_to(package).as_posix(): colours
        for path in package.rglob("*.py")
        if path.name != "palette.py"
        and (colours := re.findall(r"[\"' ]#[0-9a-f]{6}[\"';]|\"tab:", path.read_text("utf-8")))
    }
    assert found == {}


def test_css_gets_every_colour() -> None:
    found = re.findall(r"--[\w-]+:#[0-9a-f]{6};", css_variables(LIGHT))
    assert len(found) == len(Palette.__struct_fields__) - 1 + len(LIGHT.slices)
    assert "--slice-5:#b8336a;" in found
