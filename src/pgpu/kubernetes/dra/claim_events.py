"""What is said of claims: a line in the driver's log for each that came or went, and an event for what its user should know.

It refuses to fail: what cannot be told is no reason to take a slice away.
"""

import threading
import traceback
from collections.abc import Callable, Sequence

from pgpu.errors import PgpuError
from pgpu.kubernetes.api import ResourceClaim
from pgpu.kubernetes.dra.claim_preparation import ClaimName
from pgpu.model import Claim, SharingWish
from pgpu.units import format_memory

EventWriter = Callable[[ResourceClaim, str, str], None]
"""Writes a warning on a claim: the claim, a reason in one word, and a note. Must not raise for want of an API server."""


class ClaimEvents:
    """The teller of claims, and who hears the complaints about them. Safe for many threads."""

    def __init__(self, say: Callable[[str], None], write_event: EventWriter) -> None:
        self._say = say
        self._write_event = write_event
        self._guard = threading.Lock()
        self._told: dict[str, Claim] = {}

    def prepared(self, claim: Claim) -> None:
        """See `claims.preparing.Teller`; said once, however often it is asked."""
        with self._guard:
            is_new = self._told.get(claim.uid) != claim
            self._told[claim.uid] = claim
        if is_new:
            self._say(f"prepared claim {claim.namespace}/{claim.name} ({claim.uid}): {_slices(claim)}")

    def unprepared(self, uid: str) -> None:
        """See `claims.preparing.Teller`."""
        with self._guard:
            claim = self._told.pop(uid, None)
        called = f"{claim.namespace}/{claim.name} ({uid})" if claim else uid
        self._say(f"unprepared claim {called}")

    def ignored(self, found: ResourceClaim, fields: Sequence[str]) -> None:
        """See `claims.preparing.Teller`."""
        note = f"only a DeviceClass may set {', '.join(fields)}: ignored in this claim"
        self._say(f"claim {found.namespace}/{found.name} ({found.uid}): {note}")
        self._write_event(found, "ParametersIgnored", note)

    def mended(self, what: str) -> None:
        """See `claims.preparing.Teller`."""
        self._say(what)

    def refused(self, what: str, name: ClaimName, error: PgpuError) -> None:
        """See `kubelet.preparing.Complaints`."""
        hint = f" ({error.hint})" if error.hint else ""
        self._say(f"could not {what} claim {name.namespace}/{name.name} ({name.uid}): {error}{hint}")

    def failed(self, what: str, name: ClaimName, error: Exception) -> None:
        """See `kubelet.preparing.Complaints`."""
        self._say(f"pgpu failed to {what} claim {name.namespace}/{name.name} ({name.uid})")
        self._say("".join(traceback.format_exception(error)).rstrip())


def _slices(claim: Claim) -> str:
    if claim.sharing is SharingWish.EXCLUSIVE:
        return ", ".join(f"all of {part.gpu_uuid}" for part in claim.slices)
    return ", ".join(_slice(part.gpu_uuid, part.memory_bytes, part.compute_share) for part in claim.slices)


def _slice(gpu_uuid: str, memory_bytes: int, compute_share: float | None) -> str:
    time = "" if compute_share is None else f" and {compute_share:.0%} of the time"
    return f"{format_memory(memory_bytes)}{time} of {gpu_uuid}"
