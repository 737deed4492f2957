"""Functions as a server knows them: versions, who gets how much of the traffic, who may call, and what serves now.

A version never changes once it was accepted, but for whether it can be served. What a function asks for travels as the
JSON of its declaration: this room knows none of its words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pgpu.errors import RequestError

WHOLE_PERCENT = 100


class VersionState(StrEnum):
    """Whether a version can be served."""

    PENDING = "pending"
    """Its requirements are being installed."""

    READY = "ready"
    FAILED = "failed"
    """They could not be installed, or no replica of it came up in time; `Version.reason` says why."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A version as somebody asks for it."""

    function: str
    app: str
    """`module:attribute` or `file.py:attribute` in the bundle."""

    bundle: str
    """SHA-256 of the packed source tree, in hexadecimal digits."""

    declaration: str = "{}"
    """JSON of what it asks for, as `pgpu.functions.api.dump_declaration` writes it."""

    runtime: Literal["process", "docker"] = "process"
    image: str | None = None
    """Only for `docker`."""

    requirements: str | None = None
    """Text of a lock file that pip installs for it; None for none."""

    rolls_out: bool = True
    """Whether it gets all of the traffic at once; a function's first version always does."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a function; `NAME@NUMBER` as users write it."""

    function: str
    number: int
    """From 1 on."""

    owner_uid: int
    app: str
    bundle: str
    declaration: str
    runtime: Literal["process", "docker"]
    image: str | None
    requirements: str | None
    state: VersionState
    reason: str | None
    """Why it failed, in one line; None otherwise."""

    created_at_seconds: float

    @property
    def label(self) -> str:
        """`NAME@NUMBER`."""
        return f"{self.function}@{self.number}"


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a function's traffic one version gets."""

    version: int
    percent: int
    """1 to 100; those of a function sum to 100."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function with all of its versions."""

    name: str
    """Unique on the server."""

    owner_uid: int
    created_at_seconds: float
    versions: tuple[Version, ...]
    """By number; never empty."""

    traffic: tuple[Share, ...]
    """The largest share first."""

    @property
    def identity(self) -> str:
        """Which of all functions that ever had this name: a name can be another owner's once its function was removed."""
        return identity_of(self.name, self.created_at_seconds)

    def version(self, number: int) -> Version:
        """Return one version.

        Raises:
            RequestError: There is none of this number.
        """
        found = next((each for each in self.versions if each.number == number), None)
        if found is None:
            last = self.versions[-1].number
            raise RequestError(f"{self.name} has no version {number}", hint=f"its versions are 1 to {last}")
        return found


@dataclass(frozen=True, slots=True)
class FunctionToken:
    """Leave to call one function; its secret part is nobody's to read."""

    id: str
    function: str
    label: str
    created_at_seconds: float


class ReplicaState(StrEnum):
    """Where a replica is in its life, as its gateway saw it last."""

    STARTING = "starting"
    HOT = "hot"
    PARKED = "parked"
    DRAINING = "draining"
    FAILED = "failed"
    """Its worker did not start several times; it is tried again now and then."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One job that serves a version."""

    job_id: str
    function: str
    version: int
    socket_directory: str
    """Where its front listens, on this machine."""

    state: ReplicaState


COLD_START_PHASES = ("grant", "runtime", "interpreter", "imports", "restore", "constructor", "first_call")
"""`restore` stands for the three before it where a replica was parked."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """One start of a replica, from the word to start it to its first answer."""

    function: str
    version: int
    job_id: str
    at_seconds: float
    """Since the epoch, when it was asked for."""

    phases: tuple[tuple[str, float], ...]
    """(Name; seconds), in the order of `COLD_START_PHASES`; those that it did not have, or that nobody could see, are missing."""


def identity_of(name: str, created_at_seconds: float) -> str:
    """Return a function's identity; see `Function.identity`."""
    return f"{name}@{created_at_seconds!r}"


def with_canary(traffic: Sequence[Share], version: int, percent: int) -> tuple[Share, ...]:
    """Give a version a part of the traffic, and the rest to the version that has most of it now beside this one.

    Args:
        traffic: As it is.
        version: Which gets it.
        percent: 1 to 100.

    Raises:
        RequestError: `percent` is no part, or there is no other version to have the rest.
    """
    if not 1 <= percent <= WHOLE_PERCENT:
        raise RequestError(f"{percent} % is no part of the traffic", hint="a canary gets 1% to 99%")
    if percent == WHOLE_PERCENT:
        return (Share(version, WHOLE_PERCENT),)
    others = [share for share in traffic if share.version != version]
    if not others:
        raise RequestError(f"version {version} has all of the traffic already", hint="roll another version out")
    rest = max(others, key=lambda share: (share.percent, share.version))
    shares = (Share(rest.version, WHOLE_PERCENT - percent), Share(version, percent))
    return tuple(sorted(shares, key=lambda share: -share.percent))
