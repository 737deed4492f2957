"""Takes back slices of claims that the cluster has deleted while no kubelet unprepared them, as after a node lost its disk.

The scheduler counts such memory as free, and pods that are placed on it would wait for ever. A claim is taken back only after
two looks, since a pod that was deleted by force may still be ending. Slices in use stay, and so does everything while the
API server does not answer.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from pgpu.enforcement import SliceUse
from pgpu.errors import ObjectNotFoundError, PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.dra.hand_over import ClaimReader
from pgpu.model import Claim

_log = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0
"""Between two looks. A claim must be missing at both, so its slice goes after 5 to 10 minutes."""


class PreparedClaims(Protocol):
    """The part of `ClaimPreparer` that is used here."""

    def known(self) -> Collection[Claim]:
        """Return all prepared claims."""
        ...

    def unprepare(self, uid: str) -> None:
        """Take one back."""
        ...


class OrphanCollector:
    """Collects the orphaned claims of one node; for one thread."""

    def __init__(
        self,
        prepared: PreparedClaims,
        reader: ClaimReader,
        uses: Callable[[], Mapping[str, Sequence[SliceUse]]],
        now_seconds: Callable[[], float],
    ) -> None:
        """Args: the prepared claims, the cluster's, meter readings by uid, and a monotonic clock."""
        self._prepared = prepared
        self._reader = reader
        self._uses = uses
        self._now_seconds = now_seconds
        self._due_seconds = now_seconds() + SWEEP_SECONDS
        self._orphans: set[str] = set()

    def collect(self) -> None:
        """Look for orphans if it is due, and take back those of the last look.

        Raises:
            PgpuError: The API server does not answer, and nothing is taken back; or a claim cannot be taken back.
        """
        if self._now_seconds() < self._due_seconds:
            return
        self._due_seconds = self._now_seconds() + SWEEP_SECONDS
        # Cleared first: if the API server fails below, no claim counts as seen missing.
        before, self._orphans = self._orphans, set()
        deleted = [claim for claim in self._prepared.known() if self._is_deleted(claim)]
        uses = self._uses() if deleted else {}
        orphans = [claim for claim in deleted if not any(use.used_bytes for use in uses.get(claim.uid, ()))]
        self._orphans = {claim.uid for claim in orphans}
        errors: list[PgpuError] = []
        for claim in orphans:
            if claim.uid in before:
                _log.warning(
                    "the cluster has forgotten claim %s/%s (%s), and no process uses its slice",
                    *(claim.namespace, claim.name, claim.uid),
                )
                try:
                    self._prepared.unprepare(claim.uid)
                except PgpuError as exc:
                    errors.append(exc)
        if errors:
            raise errors[0]

    def _is_deleted(self, claim: Claim) -> bool:
        try:
            found = self._reader.claim(claim.namespace, claim.name)
        except ObjectNotFoundError:
            return True
        return found.uid != claim.uid or not any(each.driver == names.DRIVER for each in found.devices)
