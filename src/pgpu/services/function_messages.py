"""What may be asked of functions that a server serves: by their owners, and by the gateway before them.

Functions live on a server alone, for somebody must be there when a call comes: no engine of a process's own answers here.
It refuses to carry calls: those go to the gateway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pgpu.model import (
    ColdStart,
    Deployment,
    Event,
    Function,
    FunctionToken,
    Job,
    Replica,
    ReplicaState,
    Version,
    VersionState,
)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Traffic for a version."""

    version: int
    percent: int = 100
    """1 to 100; the rest goes to the version that had most of it before."""


@dataclass(frozen=True, slots=True)
class NewFunctionToken:
    """A token, this once in full."""

    id: str
    text: str
    """What its holder shows: `Authorization: Bearer TEXT`."""


@dataclass(frozen=True, slots=True)
class ReplicaAsk:
    """One more replica that the gateway wants, or the packages for one."""

    function: str
    version: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a version can be served."""

    version: int
    state: VersionState
    reason: str | None = None
    """Why not, in one line."""

    created_at_seconds: float | None = None
    """Of the version that was looked at, for a name and a number can be another one's by now; None: whichever has them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A token that a caller showed to the gateway."""

    token: str


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a token is good for; nothing of it, if nobody made it or it was revoked."""

    function: str | None = None
    """The one function that it may call: its identity, see `Function.identity`."""

    uid: int | None = None
    """The user of a server's own token, who may call their functions."""

    is_admin: bool = False
    """Whether that user administers, and may call everybody's."""


class Functions(Protocol):
    """What owners ask for: each sees and changes their own functions, an administrator everybody's."""

    def deploy(self, deployment: Deployment, bundle: BinaryIO) -> Version:
        """Keep a new version durably; a function's first gets all of the traffic.

        Args:
            deployment: Its bundle's digest is that of `bundle`.
            bundle: The packed source tree; read only where the server has none of this digest.

        Raises:
            RequestError: It can never be served, the name is another user's, or the bundle is none.
            CapacityError: There is no room for more bundles of the caller's.
        """
        ...

    def functions(self) -> Sequence[Function]:
        """Return the caller's functions, by name."""
        ...

    def function(self, name: str) -> Function:
        """Return one function.

        Raises:
            FunctionNotFoundError: The caller has none of this name; so of every method that takes a name.
        """
        ...

    def undeploy(self, name: str) -> Sequence[str]:
        """Forget a function, its versions and tokens; return the ids of the jobs that served it and end now."""
        ...

    def roll_out(self, name: str, rollout: Rollout) -> Function:
        """Give traffic to a version.

        Raises:
            RequestError: There is no such version, or it failed.
        """
        ...

    def roll_back(self, name: str) -> Function:
        """Let the traffic be what it was before the last rollout.

        Raises:
            RequestError: There was none.
        """
        ...

    def tokens(self, name: str) -> Sequence[FunctionToken]:
        """Return the tokens that may call a function, oldest first, without their secret parts."""
        ...

    def create_token(self, name: str, label: str) -> NewFunctionToken:
        """Make a token that may call this function and nothing else.

        Args:
            name: The function.
            label: Tells its owner whom it was given to; any text, up to 200 characters.
        """
        ...

    def revoke_token(self, name: str, token_id: str) -> None:
        """Make a token worth nothing from now on.

        Raises:
            RequestError: The function has none with this id.
        """
        ...

    def replicas(self, name: str) -> Sequence[Replica]:
        """Return what serves a function now."""
        ...

    def cold_starts(self, name: str, most: int = 100) -> Sequence[ColdStart]:
        """Return a function's last cold starts, the newest first."""
        ...


class Serving(Protocol):
    """What the gateway asks for, which administers."""

    def functions(self) -> Sequence[Function]:
        """Return everybody's functions, by name."""
        ...

    def all_replicas(self) -> Sequence[Replica]:
        """Return everything that serves now, for a gateway that was started anew."""
        ...

    def start_replica(self, ask: ReplicaAsk) -> Replica:
        """Ask for a job that serves a version, as the function's owner; the replica is kept before the job is.

        Raises:
            FunctionNotFoundError: There is no such function any more.
            RequestError: There is no such version, it is not ready, or its job can never be granted.
            CapacityError: The owner has too many waiting jobs.
        """
        ...

    def build(self, ask: ReplicaAsk) -> Job:
        """Ask for the job that installs the packages of a pending version, as the function's owner, or return the one that does.

        Whoever asks waits for its end and judges: exit code 0 makes the version ready.

        Raises:
            RequestError: The version waits for no packages.
        """
        ...

    def note_replica(self, job_id: str, state: ReplicaState) -> None:
        """Note where a replica is in its life."""
        ...

    def forget_replica(self, job_id: str) -> None:
        """Forget a replica whose job has ended, with its socket directory."""
        ...

    def judge(self, name: str, judgement: Judgement) -> None:
        """Note whether a version can be served; the traffic of one that failed is again what it was before."""
        ...

    def note_cold_start(self, start: ColdStart) -> None:
        """Keep how long a start took."""
        ...

    def events(self) -> Iterator[Event | None]:
        """Yield what happens as it happens, until the server ends; None once nothing is missed any more."""
        ...

    def bearer(self, shown: Shown) -> Bearer:
        """Tell what a token is good for; the same is said of every token that is good for nothing."""
        ...
