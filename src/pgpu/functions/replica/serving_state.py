"""What a replica is doing, in the words of health pages, metrics and errors."""

from enum import StrEnum


class ServingState(StrEnum):
    """Of a replica; what it can answer follows from it."""

    COLD = "cold"
    """There is no worker and none is being started."""

    STARTING = "starting"
    """A worker is imported, constructed, or about to be tried again; requests wait."""

    HOT = "hot"
    """The worker takes calls."""

    PARKED = "parked"
    """Its slice was taken, and its worker is frozen or gone; requests wait until there is a slice again."""

    FAILED = "failed"
    """It could not be started several times in a row; requests are refused, and it is tried again now and then."""

    DRAINING = "draining"
    """It finishes what it has and refuses the rest."""
