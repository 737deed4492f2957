"""How the jobs on one GPU share its compute."""

from enum import StrEnum


class SharingMode(StrEnum):
    """What a GPU is in; two modes never meet on one GPU."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class SharingWish(StrEnum):
    """What a job asks for."""

    TIME_SLICE = "time-slice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"
    """What was measured of it and of its neighbours decides, and a wrong decision is taken back."""
