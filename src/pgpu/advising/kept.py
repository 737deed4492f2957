"""What profiles were read as, as text that is kept: reading one takes tenths of a second, which nobody should wait for twice.

What other formulas made of a profile counts as never read, so the files of the formulas themselves are part of the key.
It refuses to store anything.
"""

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

from pgpu.advising.needs import Needs
from pgpu.advising.needs_estimation import NeedsEstimate
from pgpu.model import Evidence, Profile, Resource

PREFIX = "profile-read/"
"""What the keys of such texts begin with."""


def name_of(profile: Profile) -> str:
    """Return the rest of the key under which a profile's reading is kept."""
    return hashlib.sha256(f"{_formulas()} {profile!r}".encode(errors="surrogateescape")).hexdigest()[:32]


def text_of(reading: NeedsEstimate) -> str:
    """Return a reading as text that is kept."""
    return json.dumps(asdict(reading))


def reading_of(text: str) -> NeedsEstimate | None:
    """Read what `text_of` wrote; None where something else stands there."""
    try:
        fields = json.loads(text)
        needs = fields["needs"]
        pipes = {Resource(name): float(value) for name, value in needs["pipes"].items()}
        evidence = tuple(Evidence(each) for each in fields["evidence"])
        return NeedsEstimate(fields["busy"], Needs(**{**needs, "pipes": pipes}), evidence, tuple(fields["unknown"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@cache
def _formulas() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
