"""Reports on claims: a log line for each that was prepared, taken back or refused, and an event where its user can act."""

import logging
import threading
import traceback
from collections.abc import Callable, Sequence

from pgpu.errors import PgpuError
from pgpu.kubernetes.api import ResourceClaim
from pgpu.kubernetes.dra.claim_allocation import ClaimName
from pgpu.model import Claim, SharingWish
from pgpu.units import format_memory

_log = logging.getLogger(__name__)

EventWriter = Callable[[ResourceClaim, str, str], None]
"""Writes a warning event on a claim: the claim, a one-word reason, and a note. Must not wait for the API server."""


class ClaimEvents:
    """Reports on the claims of one driver. Thread-safe."""

    def __init__(self, write_event: EventWriter) -> None:
        self._write_event = write_event
        self._guard = threading.Lock()
        self._prepared: dict[str, Claim] = {}

    def prepared(self, claim: Claim) -> None:
        """Log that a claim has its slices; once, although the kubelet repeats its calls."""
        with self._guard:
            is_new = self._prepared.get(claim.uid) != claim
            self._prepared[claim.uid] = claim
        # The kubelet prepares a claim again at each of its starts.
        if is_new:
            _log.info("prepared claim %s/%s (%s): %s", claim.namespace, claim.name, claim.uid, _slices(claim))

    def unprepared(self, uid: str) -> None:
        """Log that nothing is left of a claim."""
        with self._guard:
            claim = self._prepared.pop(uid, None)
        _log.info("unprepared claim %s", f"{claim.namespace}/{claim.name} ({uid})" if claim else uid)

    def ignored(self, found: ResourceClaim, fields: Sequence[str]) -> None:
        """Report parameters that only a DeviceClass may set and that the claim sets in vain."""
        note = f"only a DeviceClass may set {', '.join(fields)}: ignored in this claim"
        _log.warning("claim %s/%s (%s): %s", found.namespace, found.name, found.uid, note)
        self._write_event(found, "ParametersIgnored", note)

    def refused(self, action: str, name: ClaimName, error: PgpuError) -> None:
        """Log an expected failure of one claim."""
        hint = f" ({error.hint})" if error.hint else ""
        _log.warning("could not %s claim %s/%s (%s): %s%s", action, name.namespace, name.name, name.uid, error, hint)

    def failed(self, action: str, name: ClaimName, error: Exception) -> None:
        """Log a bug, with its traceback."""
        _log.error("pgpu failed to %s claim %s/%s (%s)", action, name.namespace, name.name, name.uid)
        _log.error("%s", "".join(traceback.format_exception(error)).rstrip())


def _slices(claim: Claim) -> str:
    if claim.sharing is SharingWish.EXCLUSIVE:
        return ", ".join(f"all of {part.gpu_uuid}" for part in claim.slices)
    return ", ".join(
        f"{format_memory(part.memory_bytes)}"
        + ("" if part.compute_share is None else f" and {part.compute_share:.0%} of the time")
        + f" of {part.gpu_uuid}"
        for part in claim.slices
    )
