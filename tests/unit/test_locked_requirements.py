"""What `make setup` and CI install is pinned with hashes, and pyproject.toml allows it."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN = re.compile(r"^([\w.-]+)==([^ ;\\]+)(.*?)(?=^[\w#]|\Z)", re.MULTILINE | re.DOTALL)


def pins(name: str) -> dict[str, tuple[str, str]]:
    """Return version and the rest, with the hashes, of each package of a file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return {canonicalize_name(package): (version, rest) for package, version, rest in PIN.findall(text)}


def members(group: str) -> Iterator[str]:
    for each in PROJECT["dependency-groups"][group]:
        yield from members(each["include-group"]) if isinstance(each, dict) else [each]


WHEEL = [
    *PROJECT["project"]["dependencies"],
    *(each for extra in PROJECT["project"]["optional-dependencies"].values() for each in extra),
]
WANTED = {
    "dev": [*WHEEL, *members("dev")],
    "wheel": WHEEL,
    "numba": [*members("numba")],
    "sbom": [*members("sbom")],
    "installer": [*members("installer")],
}


@pytest.mark.parametrize("name", WANTED)
def test_what_is_asked_for_is_pinned_within_its_bounds_and_with_hashes(name: str) -> None:
    found = pins(name)
    for requirement in map(Requirement, WANTED[name]):
        if requirement.name != PROJECT["project"]["name"]:
            version, _ = found[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version} is pinned; run `make lock`"
    assert all("--hash=sha256:" in rest for _, rest in found.values())


def test_the_sbom_is_of_what_is_tested() -> None:
    tested = pins("dev")
    assert {name: version for name, (version, _) in pins("wheel").items()}.items() <= {
        name: version for name, (version, _) in tested.items()
    }.items()
