"""The compute word of the limit file: a job's share of a GPU's time, and how it is enforced.

One 64-bit word, laid out as in native/include/meter_abi.h; a test compares both. The values come from the lease.
"""

from enum import Flag
from math import ceil
from typing import Self

from pgpu.structs import Struct, replace

SHARE_UNITS = 1_000_000
"""A whole GPU's time in units of the word (millionths)."""

USER_UNITS = 1000
"""The same of a user's part (thousandths)."""

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
USER_SHIFT = 54
USER_MASK = 0x3FF

DEFAULT_WEIGHT = 100
_PRIORITY_THAT_DOUBLES = 50


class Hold(Flag):
    """Reasons for which a job's launches and copies are held. One bit for each holder, which sets and clears only its own."""

    NONE = 0
    SUSPENSION = SUSPENDED
    """Set by the job's agent while a job of higher priority has its place."""

    TURNS = TURN
    """Set by the turn scheduler of a GPU whose jobs oversubscribe its memory."""

    TRIAL = TRIAL
    """Set by the trial that measures whether jobs under MPS are faster in turns."""


class ComputeWord(Struct, frozen=True):
    """How one GPU's time is shared with a job. All zero: neither shared nor measured."""

    share: float = 0.0
    """0 to 1 of the GPU's time; 0 guarantees none. Resolution: one millionth."""

    weight: int = 0
    """0 to 65,535: the job's weight for time that is not guaranteed to any job; 0 counts as 1."""

    is_measured: bool = False
    """True if the job's GPU time is measured and published on its board."""

    is_shared: bool = False
    """True if launches wait for the job's share; implies measurement."""

    is_strict: bool = False
    """True if the share is also a ceiling, even on an idle GPU."""

    user_share: float = 0.0
    """0 to 1 of the GPU's time: the least that all jobs of the job's user have together while other users have work. 0: the time
    is not divided between users. Resolution: one thousandth."""

    holds: Hold = Hold.NONE
    """Launches and copies wait until all of these bits are clear."""

    times_held: int = 0
    """Number of times that a hold began, modulo 256. A change shows a program that launched nothing meanwhile that other jobs may
    have evicted its memory."""

    @property
    def is_held(self) -> bool:
        return bool(self.holds)

    def with_hold(self, hold: Hold, *, is_held: bool) -> Self:
        """Return the word with one holder's bit changed and the other bits kept."""
        holds = self.holds | hold if is_held else self.holds & ~hold
        # Counts from free to held only: a second holder of a job that is held already begins nothing.
        begins = bool(holds) and not self.is_held
        return replace(self, holds=holds, times_held=(self.times_held + begins) & TIMES_HELD_MASK)

    @property
    def without_holds(self) -> Self:
        """The word without hold bits and without the count of holds."""
        return replace(self, holds=Hold.NONE, times_held=0)

    def with_holds_of(self, old: Self) -> Self:
        """Return this word with the hold bits and the count of holds of `old`."""
        return replace(self, holds=old.holds, times_held=old.times_held)

    @property
    def packed(self) -> int:
        share = min(max(round(self.share * SHARE_UNITS), 0), SHARE_UNITS)
        weight = min(max(self.weight, 0), WEIGHT_MASK)
        bits = ((self.is_measured, MEASURED), (self.is_shared, SHARED), (self.is_strict, STRICT))
        # Rounded up, so that no division between users becomes none.
        user = min(ceil(self.user_share * USER_UNITS), USER_UNITS)
        numbers = share | weight << WEIGHT_SHIFT | (self.times_held & TIMES_HELD_MASK) << TIMES_HELD_SHIFT
        numbers |= user << USER_SHIFT
        return numbers | sum(bit for is_set, bit in bits if is_set) | self.holds.value

    @classmethod
    def unpack(cls, word: int) -> Self:
        """Decode a word; unknown bits are ignored."""
        return cls(
            share=(word & SHARE_MASK) / SHARE_UNITS,
            weight=word >> WEIGHT_SHIFT & WEIGHT_MASK,
            is_measured=bool(word & MEASURED),
            is_shared=bool(word & SHARED),
            is_strict=bool(word & STRICT),
            user_share=(word >> USER_SHIFT & USER_MASK) / USER_UNITS,
            holds=Hold(word & HELD),
            times_held=word >> TIMES_HELD_SHIFT & TIMES_HELD_MASK,
        )


NOT_SHARED = ComputeWord()


def weight_of(priority: int) -> int:
    """Return the weight of a job's priority (−100 to 100): each 50 double it; the result is between 25 and 400."""
    return round(DEFAULT_WEIGHT * 2 ** (priority / _PRIORITY_THAT_DOUBLES))
