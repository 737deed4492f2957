"""Keeps claims in the ledger and their slices in place: one job stands for each, and another one after a reboot.

It refuses to be needed by what runs: if its process dies, slices and limits stay as they are, and whoever comes next goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

from pgpu.enforcement import SliceUse
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.claims import ClaimableGpu
from pgpu.engine.claims.claim_admission import check_host_room, check_room, check_words, put_granted, request_of
from pgpu.engine.claims.keyed_locks import KeyedLocks
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import recover
from pgpu.engine.submission.job_submission import RESERVED_FACT
from pgpu.errors import EnforcementError, JobNotFoundError, LedgerError, NodeError, PgpuError, RequestError
from pgpu.ledger import ALL_GPUS, ClaimRecord, Entry, View
from pgpu.model import Claim, ClaimHolder, Delivery, HeldClaim, JobState
from pgpu.runtimes.claimed import read_delivery
from pgpu.scheduling import GpuRoom
from pgpu.scheduling.capacity import can_page, has_mps

_LOG = logging.getLogger(__name__)


_Answer = TypeVar("_Answer")

PATIENCE_SECONDS = 40.0
"""How long slices may take to bind, or to be free. Below the 45 s after which a kubelet gives a call up."""

_LOOK_SECONDS = 0.01
_RECOVERY_SECONDS = 1.0


class _ClaimableGpus(list[ClaimableGpu]):
    """What claims may take of each GPU, with the reading that it was computed from."""

    def __init__(self, gpus: Iterable[ClaimableGpu], snapshot: Snapshot) -> None:
        super().__init__(gpus)
        self.snapshot = snapshot


class EngineClaims:
    """The `Claims` of an engine, whose GPUs nobody else shares out from now on."""

    def __init__(self, engine: Engine, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Reserve the engine's ledger and GPUs.

        Raises:
            NodeError: Another ledger shares them out.
        """
        self._engine = engine
        self._patience_seconds = patience_seconds
        self._locks = KeyedLocks()
        engine.ledger.facts.put(RESERVED_FACT, "kubernetes")
        engine.hold_gpus()

    def gpus(self) -> Sequence[ClaimableGpu]:
        """See `Claims.gpus`."""
        snapshot = self._engine.snapshot()
        with self._engine.ledger.view() as view:
            held, closed = self._engine.queue_of(view.holding()), view.closed_gpus()
        rooms = snapshot.rooms(held, self._engine.headroom)
        found = (self._offer(room, is_closed=bool(closed & {room.gpu.uuid, ALL_GPUS})) for room in rooms)
        return _ClaimableGpus(found, snapshot)

    def lock(self, uid: str) -> AbstractContextManager[None]:
        """See `Claims.lock`."""
        return self._locks.held(uid)

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        """See `Claims.hold`."""
        check_words(claim)
        with self._locks.held(claim.uid):
            return self._hold(claim, gpus.snapshot if isinstance(gpus, _ClaimableGpus) else None)

    def free(self, uid: str) -> None:
        """See `Claims.free`."""
        with self._locks.held(uid):
            with self._engine.ledger.decision() as decision:
                record = decision.held_claims.get(uid)
                if record is None:
                    return
                decision.held_claims.free(uid, time.time())
            self._until_released(record)
            self._forget(uid)

    def held(self) -> Sequence[HeldClaim]:
        """See `Claims.held`."""
        recover(self._engine)
        found = []
        for record in self.records().values():
            try:
                found.extend(self._held_again(record.claim.uid))
            except LedgerError:
                raise
            except PgpuError as exc:
                _LOG.warning(f"the slices of claim {record.claim.namespace}/{record.claim.name} are not there: {exc}")
        return found

    def records(self) -> Mapping[str, ClaimRecord]:
        """See `Claims.records`."""
        with self._engine.ledger.view() as view:
            return {record.claim.uid: record for record in view.held_claims.all()}

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        """See `Claims.uses`."""
        found = {}
        for record in self.records().values():
            entry = self._entry(record.job_id)
            if entry is not None and entry.job.lease is not None and entry.is_lease_held:
                found[record.claim.uid] = self._engine.enforcer.use(entry.job.lease)
        return found

    def close(self) -> None:
        """See `Claims.close`."""
        self._engine.ledger.close()

    def _offer(self, room: GpuRoom, *, is_closed: bool) -> ClaimableGpu:
        settings, gpu = self._engine.settings, room.gpu
        factor = settings.oversubscription if can_page(gpu, settings.oversubscription) else 1.0
        is_mps = settings.has_mps and has_mps(gpu)
        return ClaimableGpu(gpu, room.capacity_bytes, room.granted_bytes, is_closed, is_mps, factor)

    def _held_again(self, uid: str) -> list[HeldClaim]:
        """Return a claim with its slices, unless it was freed since somebody looked."""
        with self._locks.held(uid):
            with self._engine.ledger.view() as view:
                record = view.held_claims.get(uid)
            return [] if record is None or record.is_freed else [self._hold(record.claim)]

    def _hold(self, claim: Claim, snapshot: Snapshot | None = None) -> HeldClaim:
        with self._engine.ledger.view() as view:
            is_new, standing = view.held_claims.get(claim.uid) is None, _standing_for(view, claim)
        if standing is not None:
            with suppress(EnforcementError):  # it ended meanwhile, as all do whose files a reboot took
                return self._bound_claim(claim, standing)
        try:
            return self._bound_claim(claim, self._granted(claim, snapshot or self._engine.snapshot()))
        except EnforcementError:
            if is_new:
                self._forget(claim.uid)
            raise

    def _granted(self, claim: Claim, snapshot: Snapshot) -> str:
        engine = self._engine
        factor = engine.settings.oversubscription
        for part in claim.slices:
            on_it = [gpu for gpu in snapshot.gpus if gpu.uuid == part.gpu_uuid]
            if on_it:
                engine.check_amount(on_it, request_of(claim, [part]))
        with engine.ledger.decision() as decision:
            if (standing := _standing_for(decision, claim)) is not None:
                return standing  # another process was faster
            holding = engine.queue_of(decision.holding())
            rooms = {room.gpu.uuid: room for room in snapshot.rooms(holding, engine.headroom)}
            check_room(claim, rooms, factor, holding)
            check_host_room(claim, factor, holding, engine.rounds.host_memory())
            decision.see(snapshot.gpus, time.time())
            job_id = put_granted(decision, claim, factor, engine.settings.gpu_model)
            decision.forget_oldest(engine.settings.kept_jobs)
        engine.keepers.ensure(engine.settings.gpu_model)
        engine.respawn(job_id)
        return job_id

    def _bound_claim(self, claim: Claim, job_id: str) -> HeldClaim:
        """Return a claim with its slices once they bind."""
        delivery = self._until(lambda: self._bound(job_id), f"the slices of job {job_id} do not bind yet")
        return HeldClaim(claim, job_id, delivery)

    def _bound(self, job_id: str) -> Delivery | None:
        job = self._engine.ledger.job(job_id)
        if job.state.is_final:
            raise EnforcementError(job.error or f"the slices of job {job_id} were taken away")
        if job.state is not JobState.RUNNING or not isinstance(job.holder, ClaimHolder):
            return None
        return read_delivery(Path(job.holder.slice_directory))

    def _until_released(self, record: ClaimRecord) -> None:
        entry = self._entry(record.job_id)
        if entry is not None and entry.is_live:
            self._engine.ask_to_stop(record.job_id, 0.0)
            told = f"somebody still holds memory of the slices of claim {record.claim.uid}"
            self._until(lambda: self._is_released(record.job_id), told)

    def _is_released(self, job_id: str) -> bool:
        entry = self._entry(job_id)
        return entry is None or not entry.is_live

    def _until(self, question: Callable[[], _Answer | None], complaint: str) -> _Answer:
        """Ask until there is an answer; now and then see to it that somebody works on it."""
        deadline = time.monotonic() + self._patience_seconds
        recover_at = time.monotonic() + _RECOVERY_SECONDS
        while not (answer := question()):
            now = time.monotonic()
            if now > deadline:
                raise NodeError(complaint)
            if now > recover_at:
                recover_at = now + _RECOVERY_SECONDS
                recover(self._engine)
            threading.Event().wait(_LOOK_SECONDS)
        return answer

    def _forget(self, uid: str) -> None:
        with self._engine.ledger.decision() as decision:
            decision.held_claims.forget(uid)

    def _entry(self, job_id: str) -> Entry | None:
        with self._engine.ledger.view() as view:
            return _entry(view, job_id)


def _entry(view: View, job_id: str) -> Entry | None:
    try:
        return view.entry(job_id)
    except JobNotFoundError:
        return None


def _standing_for(view: View, claim: Claim) -> str | None:
    """Return the job that has this claim's slices, or is about to; None where there is none, or none any more."""
    record = view.held_claims.get(claim.uid)
    if record is None:
        return None
    if record.is_freed:
        raise NodeError(f"the slices of claim {claim.uid} are being taken away")
    if record.claim.slices != claim.slices or record.claim.sharing != claim.sharing:
        raise RequestError(f"claim {claim.uid} is held with other slices", hint="free it first")
    entry = _entry(view, record.job_id)
    return None if entry is None or entry.job.state.is_final else record.job_id
