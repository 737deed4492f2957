"""The `Claims` of an engine: one job in the ledger stands for each claim, and another one after a reboot.

Running containers do not depend on this process: if it ends, slices and limits stay, and the next process continues.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pgpu.enforcement import SliceUse
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.claims import ClaimableGpu
from pgpu.engine.claims.claim_admission import check_host_room, check_room, check_words, put_granted, request_of
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import recover
from pgpu.engine.submission.job_submission import RESERVED_FACT
from pgpu.errors import EnforcementError, JobNotFoundError, LedgerError, NodeError, PgpuError, RequestError
from pgpu.ledger import ALL_GPUS, ClaimRecord, Entry, LedgerView
from pgpu.model import Claim, ClaimHolder, Delivery, HeldClaim, JobState
from pgpu.runtimes.claimed import read_delivery
from pgpu.scheduling.capacity import can_page, has_mps

PATIENCE_SECONDS = 40.0
"""How long slices may take to bind, or to become free. Below the 45 s after which a kubelet gives a call up."""

_POLL_SECONDS = 0.01
_RECOVERY_SECONDS = 1.0

_LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class KeyedLocks:
    """Reentrant locks by name; a lock exists as long as a thread holds it or waits for it, so the table does not grow."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the lock of a name for the block; the same thread may enter again."""
        # Counted before the lock is taken: it must not be deleted under a thread that waits for it.
        with self._guard:
            lock = self._locks.setdefault(name, threading.RLock())
            self._users[name] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._locks[name]


class _ClaimableGpus(list[ClaimableGpu]):
    """The GPUs as claims see them, with the snapshot that this was computed from."""

    def __init__(self, gpus: Iterable[ClaimableGpu], snapshot: Snapshot) -> None:
        super().__init__(gpus)
        self.snapshot = snapshot


class EngineClaims:
    """Claims on an engine's GPUs, which are reserved for claims from now on."""

    def __init__(self, engine: Engine, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Reserve the engine's ledger and GPUs.

        Raises:
            NodeError: Another ledger uses them.
        """
        self._engine = engine
        self._patience_seconds = patience_seconds
        self._locks = KeyedLocks()
        engine.ledger.facts.put(RESERVED_FACT, "kubernetes")
        engine.hold_gpus()

    def gpus(self) -> Sequence[ClaimableGpu]:
        """See `Claims.gpus`."""
        engine, settings = self._engine, self._engine.settings
        snapshot = engine.snapshot()
        with engine.ledger.view() as view:
            held, closed = engine.queue_of(view.holding()), view.closed_gpus()
        found = (
            ClaimableGpu(
                room.gpu,
                room.capacity_bytes,
                room.granted_bytes,
                is_closed=bool(closed & {room.gpu.uuid, ALL_GPUS}),
                has_mps=settings.has_mps and has_mps(room.gpu),
                oversubscription=settings.oversubscription if can_page(room.gpu, settings.oversubscription) else 1.0,
            )
            for room in snapshot.rooms(held, engine.headroom)
        )
        return _ClaimableGpus(found, snapshot)

    def lock(self, uid: str) -> contextlib.AbstractContextManager[None]:
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
                # Before the job ends: a crash in between leaves a record with the mark that the slices are to be freed.
                decision.held_claims.free(uid, time.time())
            entry = self._entry(record.job_id)
            if entry is not None and entry.is_live:
                self._engine.ask_to_stop(record.job_id, 0.0)
                self._wait_for(
                    lambda: self._is_released(record.job_id),
                    f"memory of the slices of claim {uid} is still held",
                )
            self._forget(uid)

    def held(self) -> Sequence[HeldClaim]:
        """See `Claims.held`."""
        recover(self._engine)
        found = []
        for record in self.records().values():
            claim = record.claim
            try:
                with self._locks.held(claim.uid):
                    with self._engine.ledger.view() as view:
                        current = view.held_claims.get(claim.uid)
                    if current is not None and not current.is_freed:  # else freed since
                        found.append(self._hold(current.claim))
            except LedgerError:
                raise
            except PgpuError as exc:
                _LOG.warning(f"the slices of claim {claim.namespace}/{claim.name} are not there: {exc}")
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

    def _hold(self, claim: Claim, snapshot: Snapshot | None = None) -> HeldClaim:
        with self._engine.ledger.view() as view:
            is_new, job_id = view.held_claims.get(claim.uid) is None, _present_job(view, claim)
        if job_id is not None:
            # It may have ended meanwhile, as all jobs do without their files, after a reboot.
            with contextlib.suppress(EnforcementError):
                return self._wait_for_slices(claim, job_id)
        try:
            return self._wait_for_slices(claim, self._grant(claim, snapshot or self._engine.snapshot()))
        except EnforcementError:
            if is_new:
                self._forget(claim.uid)
            raise

    def _grant(self, claim: Claim, snapshot: Snapshot) -> str:
        """Write a job that stands for a claim, start its supervisor, and return its id."""
        engine = self._engine
        factor = engine.settings.oversubscription
        for part in claim.slices:
            on_it = [gpu for gpu in snapshot.gpus if gpu.uuid == part.gpu_uuid]
            if on_it:
                engine.check_amount(on_it, request_of(claim, [part]))
        with engine.ledger.decision() as decision:
            if (job_id := _present_job(decision, claim)) is not None:
                return job_id  # another process was faster
            holding = engine.queue_of(decision.holding())
            rooms = {room.gpu.uuid: room for room in snapshot.rooms(holding, engine.headroom)}
            check_room(claim, rooms, factor, holding)
            check_host_room(claim, factor, holding, engine.rounds.host_memory())
            decision.put_gpus(snapshot.gpus, time.time())
            job_id = put_granted(decision, claim, factor, engine.settings.gpu_model)
            decision.forget_oldest(engine.settings.kept_jobs)
        engine.keepers.ensure(engine.settings.gpu_model)
        engine.respawn(job_id)
        return job_id

    def _wait_for_slices(self, claim: Claim, job_id: str) -> HeldClaim:
        delivery = self._wait_for(lambda: self._delivery(job_id), f"the slices of job {job_id} do not bind yet")
        return HeldClaim(claim, job_id, delivery)

    def _delivery(self, job_id: str) -> Delivery | None:
        """Return what the enforcer made for a job; None while its slices do not bind yet."""
        job = self._engine.ledger.job(job_id)
        if job.state.is_final:
            raise EnforcementError(job.error or f"the slices of job {job_id} were taken away")
        if job.state is not JobState.RUNNING or not isinstance(job.holder, ClaimHolder):
            return None
        return read_delivery(Path(job.holder.slice_directory))

    def _is_released(self, job_id: str) -> bool:
        entry = self._entry(job_id)
        return entry is None or not entry.is_live

    def _wait_for(self, poll: Callable[[], _Answer | None], error: str) -> _Answer:
        """Poll until there is a result; once a second recover jobs, since their supervisors may have died.

        Raises:
            NodeError: There is none within the patience, with `error` as its message.
        """
        deadline = time.monotonic() + self._patience_seconds
        recover_at = time.monotonic() + _RECOVERY_SECONDS
        while not (answer := poll()):
            now = time.monotonic()
            if now > deadline:
                raise NodeError(error)
            if now > recover_at:
                recover_at = now + _RECOVERY_SECONDS
                recover(self._engine)
            threading.Event().wait(_POLL_SECONDS)
        return answer

    def _forget(self, uid: str) -> None:
        with self._engine.ledger.decision() as decision:
            decision.held_claims.forget(uid)

    def _entry(self, job_id: str) -> Entry | None:
        with self._engine.ledger.view() as view:
            return _entry(view, job_id)


def _entry(view: LedgerView, job_id: str) -> Entry | None:
    try:
        return view.entry(job_id)
    except JobNotFoundError:
        return None


def _present_job(view: LedgerView, claim: Claim) -> str | None:
    """Return the id of the job that has this claim's slices, or is about to; None where there is none, or it has ended."""
    record = view.held_claims.get(claim.uid)
    if record is None:
        return None
    if record.is_freed:
        raise NodeError(f"the slices of claim {claim.uid} are being taken away")
    if record.claim.slices != claim.slices or record.claim.sharing != claim.sharing:
        raise RequestError(f"claim {claim.uid} is held with other slices", hint="free it first")
    entry = _entry(view, record.job_id)
    return None if entry is None or entry.job.state.is_final else record.job_id
