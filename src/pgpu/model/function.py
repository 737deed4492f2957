"""Deployed functions: their versions, the traffic of each version, call tokens, replicas and cold starts.

A version is immutable once it was accepted, except for its state. Its declaration is opaque JSON here.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pgpu.errors import RequestError
from pgpu.structs import Struct

WHOLE_PERCENT = 100


class VersionState(StrEnum):
    """Whether a version can be served."""

    PENDING = "pending"
    """Its requirements are being installed."""

    READY = "ready"
    FAILED = "failed"
    """Its requirements could not be installed, or no replica of it became ready in time; see `Version.reason`."""


class Deployment(Struct, frozen=True):
    """Request for a new version."""

    function: str
    app: str
    """`module:attribute` or `file.py:attribute` in the bundle."""

    bundle: str
    """SHA-256 of the packed source tree, in hexadecimal digits."""

    declaration: str = "{}"
    """JSON of its resources and limits, as `pgpu.functions.api.dump_declaration` writes it."""

    runtime: Literal["process", "docker"] = "process"
    image: str | None = None
    """Only for `docker`."""

    requirements: str | None = None
    """Text of a lock file that is installed with pip; None for none."""

    is_filled: bool = False
    """Whether its cache is filled before it can be served; set by the server."""

    rolls_out: bool = True
    """Whether it gets all of the traffic at once; the first version of a function always does."""


class Version(Struct, frozen=True):
    """One version of a function, written `NAME@NUMBER`."""

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


class Share(Struct, frozen=True):
    """Part of a function's traffic that one version gets."""

    version: int
    percent: int
    """1 to 100; those of a function sum to 100."""


class Function(Struct, frozen=True):
    """One function with all its versions."""

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
        """Distinguishes functions of one name over time: a removed function's name may get another owner."""
        return identity_of(self.name, self.created_at_seconds)

    def version(self, number: int) -> Version:
        """Return one version.

        Raises:
            RequestError: There is no version of this number.
        """
        found = next((each for each in self.versions if each.number == number), None)
        if found is None:
            last = self.versions[-1].number
            raise RequestError(f"{self.name} has no version {number}", hint=f"its versions are 1 to {last}")
        return found


class FunctionToken(Struct, frozen=True):
    """Token to call one function, without its secret part."""

    id: str
    function: str
    label: str
    created_at_seconds: float
    expires_at_seconds: float | None = None
    """None for a token without an end."""


class ReplicaState(StrEnum):
    """Last state of a replica that its gateway observed."""

    STARTING = "starting"
    HOT = "hot"
    PARKED = "parked"
    DRAINING = "draining"
    FAILED = "failed"
    """Its worker failed to start several times; it is retried periodically."""


class Replica(Struct, frozen=True):
    """One job that serves a version."""

    job_id: str
    function: str
    version: int
    socket_directory: str
    """Directory of its socket on this machine."""

    state: ReplicaState


# `restore` replaces the three phases before it if the replica was parked.
COLD_START_PHASES = ("grant", "runtime", "interpreter", "imports", "restore", "constructor", "first_call")


class ColdStart(Struct, frozen=True):
    """One start of a replica, from the decision to start it to its first response."""

    function: str
    version: int
    job_id: str
    at_seconds: float
    """When it was requested, since the epoch."""

    phases: tuple[tuple[str, float], ...]
    """(Name, seconds) in the order of `COLD_START_PHASES`, without phases that it did not have or that were not observed."""


def identity_of(name: str, created_at_seconds: float) -> str:
    """Return the identity of a function; see `Function.identity`."""
    return f"{name}@{created_at_seconds!r}"


def with_canary(traffic: Sequence[Share], version: int, percent: int) -> tuple[Share, ...]:
    """Give a version a part of the traffic, and the rest to the other version that has most of it now.

    Args:
        traffic: Current shares.
        version: Number of the canary version.
        percent: 1 to 100.

    Raises:
        RequestError: `percent` is out of range, or there is no other version for the rest.
    """
    if not 1 <= percent <= WHOLE_PERCENT:
        raise RequestError(f"{percent} % is not a valid share of the traffic", hint="a canary gets 1% to 99%")
    if percent == WHOLE_PERCENT:
        return (Share(version, WHOLE_PERCENT),)
    others = [share for share in traffic if share.version != version]
    if not others:
        raise RequestError(f"version {version} has all of the traffic already", hint="roll another version out")
    rest = max(others, key=lambda share: (share.percent, share.version))
    shares = (Share(rest.version, WHOLE_PERCENT - percent), Share(version, percent))
    return tuple(sorted(shares, key=lambda share: -share.percent))
