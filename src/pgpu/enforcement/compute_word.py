"""The limit file's word of compute: which share of a GPU's time a job has, and how it binds.

The layout is native/include/meter_abi.h's; a test holds both against each other. It refuses to say who gets what: that
stands in a lease.
"""

from dataclasses import dataclass, replace
from enum import Flag
from typing import Self

SHARE_UNITS = 1_000_000
"""A whole GPU's time, in the word's millionths."""

SHARE_MASK = 0xFFFFF
WEIGHT_SHIFT = 20
WEIGHT_MASK = 0xFFFF
MEASURED = 1 << 40
SHARED = 1 << 41
STRICT = 1 << 42
SUSPENDED = 1 << 43
TURN = 1 << 44
TRIAL = 1 << 45
HELD = SUSPENDED | TURN | TRIAL
TIMES_HELD_SHIFT = 46
TIMES_HELD_MASK = 0xFF

DEFAULT_WEIGHT = 100
_PRIORITY_THAT_DOUBLES = 50


class Hold(Flag):
    """Who makes a job's launches and copies wait. Each sets and takes back its own alone, so that none undoes another's."""

    NOBODY = 0
    SUSPENSION = SUSPENDED
    """The job's own supervisor, while somebody of a higher priority has its place."""

    TURNS = TURN
    """Who does the turns of a GPU whose jobs oversubscribe it."""

    TRIAL = TRIAL
    """Who tries whether jobs under MPS are better off in turns, and lets them take turns if so."""


@dataclass(frozen=True, slots=True)
class ComputeWord:
    """How one GPU's time is shared with a job. All zero: it is neither shared nor measured."""

    share: float = 0.0
    """0 to 1 of the GPU's time; 0 guarantees none. Kept to a millionth."""

    weight: int = 0
    """0 to 65,535: what the job gets of time that nobody is entitled to, against others; 0 counts as 1."""

    is_measured: bool = False
    """Whether its GPU time is measured and told on the board."""

    is_shared: bool = False
    """Whether its launches wait for their share; then it is measured, too."""

    is_strict: bool = False
    """Whether it never gets more than its share, even of a GPU that is idle."""

    holds: Hold = Hold.NOBODY
    """Its launches and copies wait until everybody here has taken this back."""

    times_held: int = 0
    """How often somebody began to hold it, modulo 256: a program that launched nothing meanwhile sees by this that others
    may have pushed out its memory."""

    @property
    def is_held(self) -> bool:
        """Whether anybody makes it wait."""
        return bool(self.holds)

    def with_hold(self, hold: Hold, *, is_held: bool) -> Self:
        """Return the word with one holder's part changed, the others' as they are."""
        holds = self.holds | hold if is_held else self.holds & ~hold
        begins = bool(holds) and not self.is_held
        return replace(self, holds=holds, times_held=(self.times_held + begins) & TIMES_HELD_MASK)

    @property
    def asked(self) -> Self:
        """What was asked for, whoever holds or held it."""
        return replace(self, holds=Hold.NOBODY, times_held=0)

    def over(self, old: Self) -> Self:
        """Return this word with what the one before it says of who holds or held the job."""
        return replace(self, holds=old.holds, times_held=old.times_held)

    @property
    def packed(self) -> int:
        """The word itself."""
        share = min(max(round(self.share * SHARE_UNITS), 0), SHARE_UNITS)
        weight = min(max(self.weight, 0), WEIGHT_MASK)
        bits = ((self.is_measured, MEASURED), (self.is_shared, SHARED), (self.is_strict, STRICT))
        numbers = share | weight << WEIGHT_SHIFT | (self.times_held & TIMES_HELD_MASK) << TIMES_HELD_SHIFT
        return numbers | sum(bit for is_set, bit in bits if is_set) | self.holds.value

    @classmethod
    def unpack(cls, word: int) -> Self:
        """Read a word; bits that have no meaning yet are left out."""
        return cls(
            share=(word & SHARE_MASK) / SHARE_UNITS,
            weight=word >> WEIGHT_SHIFT & WEIGHT_MASK,
            is_measured=bool(word & MEASURED),
            is_shared=bool(word & SHARED),
            is_strict=bool(word & STRICT),
            holds=Hold(word & HELD),
            times_held=word >> TIMES_HELD_SHIFT & TIMES_HELD_MASK,
        )


NOT_SHARED = ComputeWord()


def weight_of(priority: int) -> int:
    """Return the weight of a job's priority (−100 to 100): 50 more double it, so that it stays between 25 and 400."""
    return round(DEFAULT_WEIGHT * 2 ** (priority / _PRIORITY_THAT_DOUBLES))
