"""Gives slices back whose claims the cluster has long forgotten, where no kubelet is left that would: one that lost its disk.

The scheduler counts their memory as free, and pods that get it would wait here for ever. It refuses to hurry: a pod that was
deleted by force may still be ending. What is used stays, and so does everything while the API server says nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from pgpu.enforcement import SliceUse
from pgpu.errors import ObjectNotFoundError, PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.dra.claim_preparation import ClaimReader
from pgpu.model import Claim

SWEEP_SECONDS = 300.0
"""Between two looks. A claim must be forgotten at two of them, so its slice goes after 5 to 10 minutes."""


class Prepared(Protocol):
    """Who prepared claims, and takes them back; see `claims.preparing.Preparer`."""

    def known(self) -> Collection[Claim]:
        """Return all that are prepared."""
        ...

    def unprepare(self, uid: str) -> None:
        """Take one back."""
        ...


class OrphanCollector:
    """The sweeper of one node."""

    def __init__(
        self,
        prepared: Prepared,
        reader: ClaimReader,
        uses: Callable[[], Mapping[str, Sequence[SliceUse]]],
        say: Callable[[str], None],
        now_seconds: Callable[[], float],
    ) -> None:
        """Args: who holds, who knows claims, what is used by uid, the operator's ear, and seconds that only grow."""
        self._prepared = prepared
        self._reader = reader
        self._uses = uses
        self._say = say
        self._now_seconds = now_seconds
        self._due_seconds = now_seconds() + SWEEP_SECONDS
        self._forgotten: set[str] = set()

    def look(self) -> None:
        """Sweep, where it is time to.

        Raises:
            PgpuError: The API server does not answer, and all waits for the next time; or something cannot be taken back.
        """
        if self._now_seconds() < self._due_seconds:
            return
        self._due_seconds = self._now_seconds() + SWEEP_SECONDS
        before, self._forgotten = self._forgotten, set()
        forgotten = [claim for claim in self._prepared.known() if self._is_forgotten(claim)]
        uses = self._uses() if forgotten else {}
        self._forgotten = {
            claim.uid for claim in forgotten if not any(use.used_bytes for use in uses.get(claim.uid, ()))
        }
        self._take_back([claim for claim in forgotten if claim.uid in before & self._forgotten])

    def _take_back(self, claims: Sequence[Claim]) -> None:
        wrong: list[PgpuError] = []
        for claim in claims:
            told = f"claim {claim.namespace}/{claim.name} ({claim.uid})"
            self._say(f"the cluster has forgotten {told}, and nobody uses its slice")
            try:
                self._prepared.unprepare(claim.uid)
            except PgpuError as exc:
                wrong.append(exc)
        if wrong:
            raise wrong[0]

    def _is_forgotten(self, claim: Claim) -> bool:
        try:
            found = self._reader.claim(claim.namespace, claim.name)
        except ObjectNotFoundError:
            return True
        return found.uid != claim.uid or not any(each.driver == names.DRIVER for each in found.devices)
