"""Hand-over of GPU memory: a Prepare without room waits for claims whose pods are leaving, instead of for the kubelet's back-off.

The API server may count a claim's devices as free, and the scheduler allocate them again, while the node's kubelet still stops
the pod that had them, as after a forced deletion. A Prepare that failed then would be repeated by the kubelet's back-off, after half
a minute or more. It waits instead, outside of the lock of its claim, until the kubelet unprepares a leaving claim, or none of
that claim's processes holds the GPU: then it is released here. Releasing kills what still runs inside and may last, so each
release has a thread of its own. A claim of a pod that stays is never released, whether its containers run, crash or restart.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pgpu.engine.claims import Claims
from pgpu.errors import CancelledError, CapacityError, ClusterError, ObjectNotFoundError, PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClaimUser, PodLifecycle, ResourceClaim
from pgpu.kubernetes.dra.claim_allocation import NOTE
from pgpu.model import Claim

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25

SETTLING_SECONDS = 2.0
"""After a release attempts go on for so long: a GPU's driver may report memory of a killed process for a moment."""


class ClaimReader(Protocol):
    """Reads claims from the API server."""

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a claim as it is now.

        Raises:
            ClusterError: There is none, or the API server does not answer.
        """
        ...


class PodReader(ClaimReader, Protocol):
    """Reads claims and their pods from the API server; repeats no attempt once the call `must_end`."""

    def claim(self, namespace: str, name: str, must_end: Callable[[], bool] = ...) -> ResourceClaim:
        """See `ClaimReader`."""
        ...

    def pod(self, namespace: str, name: str, must_end: Callable[[], bool] = ...) -> PodLifecycle:
        """Return a pod as it is now; raises like `claim`."""
        ...


@dataclass(eq=False)
class RoomWait:
    """One Prepare call for one claim."""

    uid: str
    must_answer: Callable[[], bool]
    """Whether the call cannot wait any longer."""

    gpu_uuids: frozenset[str] = frozenset()
    """Where the claim needs room; empty before the first attempt."""

    leaving: set[str] = field(default_factory=set)
    """Uids of claims of leaving pods on these GPUs."""

    arrived: set[str] = field(default_factory=set)
    """Uids of claims that were prepared during the call: a claim that another pod has now is not leaving."""

    releases: int = 0
    """Releases before the last attempt."""

    is_cancelled: bool = False


class HandOver:
    """Waits for room on one node. Thread-safe; no lock is held while a thread waits."""

    def __init__(self, claims: Claims, reader: PodReader, node: str, unprepare: Callable[[str], None]) -> None:
        """Args: the node's claims, the cluster's, the node's name, and what releases a claim by its uid."""
        self._claims = claims
        self._reader = reader
        self._node = node
        self._unprepare = unprepare
        self._changed = threading.Condition()
        self._waits: list[RoomWait] = []
        self._releases = 0
        self._released_seconds = float("-inf")
        self._releasing: set[str] = set()

    @contextlib.contextmanager
    def waiting(self, uid: str, must_answer: Callable[[], bool]) -> Iterator[RoomWait]:
        """Register a call for the block."""
        wait = RoomWait(uid, must_answer)
        with self._changed:
            self._waits.append(wait)
        try:
            yield wait
        finally:
            with self._changed:
                self._waits.remove(wait)

    def begin_attempt(self, wait: RoomWait) -> None:
        """Call before each attempt to hold the claim, under its lock.

        Raises:
            CancelledError: The claim was unprepared since the last attempt.
        """
        with self._changed:
            if wait.is_cancelled:
                raise CancelledError(f"claim {wait.uid} was unprepared while it waited for room")
            wait.releases = self._releases
            for each in self._waits:
                each.arrived.add(wait.uid)
                each.leaving.discard(wait.uid)

    def cancel(self, uid: str) -> None:
        """End the waits for a claim: it is unprepared, so nothing would unprepare it once more."""
        with self._changed:
            for each in self._waits:
                each.is_cancelled |= each.uid == uid and bool(each.gpu_uuids)
            self._changed.notify_all()

    def note_release(self, uid: str) -> None:
        """Wake all waits: a claim's memory is free."""
        with self._changed:
            self._releases += 1
            self._released_seconds = time.monotonic()
            for each in self._waits:
                each.leaving.discard(uid)
            self._changed.notify_all()

    def wait_for_room(self, wait: RoomWait, refusal: CapacityError) -> None:
        """Return when another attempt may succeed. Called without the claim's lock, which an unprepare needs.

        Raises:
            CapacityError: `refusal`: nothing on these GPUs is leaving, the claim was unprepared, or the call must be answered.
        """
        if not wait.leaving:
            leaving = self._leaving_beside(wait)
            with self._changed:
                wait.leaving = leaving - wait.arrived
        while not (wait.is_cancelled or wait.must_answer()):
            with self._changed:
                leaving, has_news = set(wait.leaving), self._releases != wait.releases
                is_settled = time.monotonic() - self._released_seconds > SETTLING_SECONDS
            if has_news:
                return
            if not leaving and is_settled:
                break
            self._release_idle(leaving)
            with self._changed:
                self._changed.wait_for(lambda: wait.is_cancelled or self._releases != wait.releases, _POLL_SECONDS)
            if not leaving:
                return
        raise refusal

    def _leaving_beside(self, wait: RoomWait) -> set[str]:
        beside = [
            record
            for record in self._claims.records().values()
            if record.claim.uid != wait.uid
            and record.claim.note == NOTE
            and any(part.gpu_uuid in wait.gpu_uuids for part in record.claim.slices)
        ]
        return {
            record.claim.uid
            for record in beside
            if not wait.must_answer() and (record.is_freed or self._is_leaving(record.claim, wait.must_answer))
        }

    def _is_leaving(self, held: Claim, must_answer: Callable[[], bool] = lambda: False) -> bool | None:
        """None: unknown, since the API server does not answer; also while it hangs beyond the time of the call."""
        try:
            found = self._reader.claim(held.namespace, held.name, must_answer)
            is_allocated = found.uid == held.uid and any(
                (each.driver, each.pool) == (names.DRIVER, self._node) for each in found.devices
            )
            # A claim loses its allocation only once each of its pods has ended or is gone.
            return not is_allocated or (
                bool(found.users)
                and all(self._is_user_leaving(found.namespace, each, must_answer) for each in found.users)
            )
        except ObjectNotFoundError:
            return True
        except ClusterError as exc:
            _log.warning("whether the pods of claim %s/%s leave is unknown: %s", held.namespace, held.name, exc)
            return None

    def _is_user_leaving(self, namespace: str, user: ClaimUser, must_answer: Callable[[], bool]) -> bool:
        if user.resource != "pods" or must_answer():
            return False
        try:
            pod = self._reader.pod(namespace, user.name, must_answer)
        except ObjectNotFoundError:
            return True
        return pod.uid != user.uid or pod.is_leaving

    def _release_idle(self, leaving: set[str]) -> None:
        uses = self._claims.uses() if leaving else {}
        idle = {uid for uid in leaving if not any(use.processes or use.used_bytes for use in uses.get(uid, ()))}
        with self._changed:
            idle -= self._releasing
            self._releasing |= idle
        for uid in idle:
            threading.Thread(target=self._release, args=(uid,), name="release", daemon=True).start()

    def _release(self, uid: str) -> None:
        try:
            # Read again: another pod may have it meanwhile, for which the kubelet does not prepare it once more.
            record = self._claims.records().get(uid)
            is_leaving = record is not None and (record.is_freed or self._is_leaving(record.claim))
            with self._claims.lock(uid):
                # Under the claim's lock: it may have been prepared for another pod meanwhile.
                with self._changed:
                    if is_leaving is False:
                        for each in self._waits:
                            each.leaving.discard(uid)
                    is_awaited = any(uid in each.leaving for each in self._waits)
                if is_leaving and is_awaited:
                    self._unprepare(uid)
        except PgpuError as exc:
            _log.warning("claim %s of a leaving pod cannot be released: %s", uid, exc)
        finally:
            with self._changed:
                self._releasing.discard(uid)
