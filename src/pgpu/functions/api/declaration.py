"""A function's declaration as a value: plain numbers whose units stand in their names.

It refuses text: `words.py` reads what people write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgpu.errors import RequestError
from pgpu.units import MIB


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests are handed to the handler together, as a list.

    Attributes:
        max_size: The most requests in one batch, at least 1.
        max_wait_seconds: How long a free lane waits for more requests. 0: a batch starts as soon as the lane is free,
            with what has come meanwhile; that is the best choice unless a batch of one costs as much as a full one.
    """

    max_size: int
    max_wait_seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_between("max_size", self.max_size, 1, 65536)
        _check_between("max_wait", self.max_wait_seconds, 0, 60)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a function asks for and how it wants to be called; every field has a default."""

    memory_bytes: int | None = None
    """GPU memory of a replica on each of its GPUs, CUDA context included; None: not said, as for a job."""

    compute_share: float | None = None
    """Share of each GPU's time, above 0 to 1; None: not limited."""

    gpus: int = 0
    """GPUs of a replica; 0 is a CPU function. Text that names memory or compute and no number of GPUs means 1."""

    host_memory_bytes: int | None = None
    """What a replica's container may hold of the machine's own memory, its scratch in `/tmp` included; None: as every sealed
    container, 4 GiB. A process has no such limit."""

    concurrency: int = 1
    """Calls that one replica runs at a time. 1 by default, since most models are not thread-safe."""

    batch: Batch | None = None
    """How requests are put together; None: one at a time."""

    timeout_seconds: float = 60.0
    """How long a request may take, waiting included, unless the caller allows less."""

    startup_timeout_seconds: float = 300.0
    """How long importing and constructing may take: weights are read from slow disks."""

    is_idempotent: bool = False
    """A call may be made twice: one that a dying worker had received is made again."""

    queue_limit: int = 100
    """Requests that may wait in one replica; more are answered 429."""

    max_body_bytes: int = 100 * MIB
    """The largest body of a request; a larger one is answered 413."""

    minimum: int = 0
    """Replicas that stay even when nobody calls; 1 pins a function."""

    maximum: int = 1
    """The most replicas."""

    idle_seconds: float = 300.0
    """How long a replica stays after its last request: loading most models again costs seconds."""

    keep_warm: str | None = None
    """`auto`: learn from the arrivals when to stay warm; None: `idle_seconds` alone decides."""

    network: str | None = None
    """The container's network; None: it has none, and is reached by a Unix socket."""

    is_public: bool = False
    """Anybody may call it without a token."""

    requirements: tuple[str, ...] = ()
    """Python packages that are installed for it, as pip writes them."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the constructor."""

    is_asgi: bool = False
    """The callable is an ASGI application, which takes every request of its function as it is. Seen by its parameters."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None:
                _check_between(_PLAIN_NAMES.get(name, name), value, least, most)
        if self.minimum > self.maximum:
            raise RequestError(
                f"minimum {self.minimum} is above maximum {self.maximum}", hint="raise maximum, or lower minimum"
            )
        if self.gpus == 0 and (self.memory_bytes is not None or self.compute_share is not None):
            raise RequestError("a function without a GPU has no GPU memory and no compute share", hint="say gpus=1")
        if self.is_asgi and self.batch is not None:
            raise RequestError("an ASGI application takes no batches", hint="leave batch out")
        if self.keep_warm not in {None, "auto"}:
            raise RequestError(f"keep_warm {self.keep_warm!r} is not known", hint='say "auto", or leave it out')


_DAY_SECONDS = 86400.0
_BOUNDS: dict[str, tuple[float, float]] = {
    "memory_bytes": (MIB, 2**50),
    "compute_share": (0.01, 1),
    "gpus": (0, 64),
    "host_memory_bytes": (64 * MIB, 2**50),
    "concurrency": (1, 1024),
    "timeout_seconds": (0.001, 7 * _DAY_SECONDS),
    "startup_timeout_seconds": (0.001, _DAY_SECONDS),
    "queue_limit": (0, 1_000_000),
    "max_body_bytes": (0, 2**40),
    "minimum": (0, 1000),
    "maximum": (1, 1000),
    "idle_seconds": (0, 365 * _DAY_SECONDS),
}
_PLAIN_NAMES = {
    "memory_bytes": "memory",
    "compute_share": "compute",
    "host_memory_bytes": "host_memory",
    "timeout_seconds": "timeout",
    "startup_timeout_seconds": "startup_timeout",
    "max_body_bytes": "max_body",
    "idle_seconds": "idle",
}


def _check_between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise RequestError(f"{name} is {value:g}", hint=f"{name} is from {least:g} to {most:g}")
