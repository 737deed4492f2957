"""The `Claims` of an engine: one job in the ledger stands for each claim, and another one after a reboot.

A claim is granted at once or refused. Running containers do not depend on this process: slices and limits outlive it.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pgpu.enforcement import SliceUse
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.claims import ClaimableGpu, check_words
from pgpu.engine.engine import Engine
from pgpu.engine.job_submission import RESERVED_FACT, new_job_id
from pgpu.engine.leases.recovery import recover
from pgpu.errors import (
    CapacityError,
    EnforcementError,
    JobNotFoundError,
    LedgerError,
    NodeError,
    PgpuError,
    RequestError,
)
from pgpu.host.stderr_log import say
from pgpu.ledger import ALL_GPUS, ClaimRecord, Decision, Entry, LedgerView
from pgpu.model import (
    KUBERNETES_UID,
    Claim,
    ClaimHolder,
    Delivery,
    HeldClaim,
    Job,
    JobSpec,
    JobState,
    Lease,
    Objective,
    Request,
    Slice,
)
from pgpu.runtimes.claim_runtime import CLAIM_VARIABLE, read_delivery
from pgpu.scheduling import GpuRoom, has_compute
from pgpu.scheduling.capacity import (
    can_page,
    has_mps,
    host_bytes,
    mode_of,
    most_clients,
    resident_bytes,
    short_of_host_memory,
    supports_mode,
    with_host_part,
)
from pgpu.structs import replace
from pgpu.units import format_memory

PATIENCE_SECONDS = 40.0
"""How long slices may take to bind, or to become free. Below the 45 s after which a kubelet gives a call up."""

_UID_DIGITS = 8
_POLL_SECONDS = 0.01
_RECOVERY_SECONDS = 1.0


_Result = TypeVar("_Result")


class KeyedLocks:
    """Reentrant locks by name; a lock exists as long as a thread holds it or waits for it, so the table does not grow."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
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


class _GpusOfSnapshot(list[ClaimableGpu]):
    """The GPUs as claims see them, with the snapshot that this was computed from."""

    def __init__(self, gpus: Iterable[ClaimableGpu], snapshot: Snapshot) -> None:
        super().__init__(gpus)
        self.snapshot = snapshot


class EngineClaims:
    """Claims on an engine's GPUs, which are reserved for claims from now on."""

    def __init__(self, engine: Engine) -> None:
        """Reserve the engine's ledger and GPUs.

        Raises:
            NodeError: Another ledger uses them.
        """
        self._engine = engine
        self._locks = KeyedLocks()
        engine.ledger.facts.put(RESERVED_FACT, "kubernetes")
        # Until this process ends: no other ledger may grant these GPUs.
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
        return _GpusOfSnapshot(found, snapshot)

    def lock(self, uid: str) -> contextlib.AbstractContextManager[None]:
        """See `Claims.lock`."""
        return self._locks.hold(uid)

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        """See `Claims.hold`."""
        check_words(claim)
        with self._locks.hold(claim.uid):
            return self._hold(claim, gpus.snapshot if isinstance(gpus, _GpusOfSnapshot) else None)

    def free(self, uid: str) -> None:
        """See `Claims.free`."""
        with self._locks.hold(uid):
            with self._engine.ledger.decision() as decision:
                record = decision.held_claims.get(uid)
                if record is None:
                    return
                # Before the job ends: a crash in between leaves a record with the mark that the slices are to be freed.
                decision.held_claims.free(uid, time.time())
            entry = self._entry(record.job_id)
            if entry is not None and entry.is_live:
                self._engine.ask_to_stop(record.job_id, 0.0)

                def is_released() -> bool:
                    entry = self._entry(record.job_id)
                    return entry is None or not entry.is_live

                self._wait_for(is_released, f"memory of the slices of claim {uid} is still held")
            self._forget(uid)

    def held(self) -> Sequence[HeldClaim]:
        """See `Claims.held`."""
        # Jobs of claims that ended with a reboot are marked as lost first, so that `_hold` grants new ones.
        recover(self._engine)
        found = []
        for record in self.records().values():
            claim = record.claim
            try:
                with self._locks.hold(claim.uid):
                    with self._engine.ledger.view() as view:
                        current = view.held_claims.get(claim.uid)
                    if current is not None and not current.is_freed:  # else freed since
                        found.append(self._hold(current.claim))
            except LedgerError:
                raise
            except PgpuError as exc:
                say(f"the slices of claim {claim.namespace}/{claim.name} are not there: {exc}")
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
            # A claim that was held before, as before a reboot, stays recorded: `held` makes its slices later.
            if is_new:
                self._forget(claim.uid)
            raise

    def _grant(self, claim: Claim, snapshot: Snapshot) -> str:
        engine = self._engine
        factor = engine.settings.oversubscription
        for part in claim.slices:
            on_it = [gpu for gpu in snapshot.gpus if gpu.uuid == part.gpu_uuid]
            if on_it:
                engine.check_amount(on_it, request_of(claim, [part]))
        # Room is checked inside of the transaction: nothing else can be granted it before the commit.
        with engine.ledger.decision() as decision:
            if (job_id := _present_job(decision, claim)) is not None:
                return job_id  # another process was faster
            holding = engine.queue_of(decision.holding())
            rooms = {room.gpu.uuid: room for room in snapshot.rooms(holding, engine.headroom)}
            check_room(claim, rooms, factor, holding)
            check_host_room(claim, factor, holding, engine.rounds.host_memory())
            decision.put_gpus(snapshot.gpus, time.time())
            job_id = put_granted_job(decision, claim, factor, engine.settings.gpu_model)
            decision.forget_oldest(engine.settings.kept_jobs)
        # After the commit: a crash here leaves a granted job that no agent supervises, which recovery calls one for.
        engine.agents.attend(engine.settings.gpu_model, job_id)
        return job_id

    def _wait_for_slices(self, claim: Claim, job_id: str) -> HeldClaim:
        delivery = self._wait_for(lambda: self._delivery(job_id), f"the slices of job {job_id} do not bind yet")
        return HeldClaim(claim, job_id, delivery)

    def _delivery(self, job_id: str) -> Delivery | None:
        """Return what the enforcer made for a job; None while its slices do not bind yet."""
        job = self._engine.ledger.job(job_id)
        if job.state.is_final:
            raise EnforcementError(job.error or f"the slices of job {job_id} were taken away")
        # The agent writes both once the limits bind.
        if job.state is not JobState.RUNNING or not isinstance(job.holder, ClaimHolder):
            return None
        return read_delivery(Path(job.holder.slice_directory))

    def _wait_for(self, poll: Callable[[], _Result | None], error: str) -> _Result:
        """Poll until there is a result; once a second recover jobs, since their agent may have died.

        Raises:
            NodeError: There is none within the patience, with `error` as its message.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
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
        with self._engine.ledger.view() as view, contextlib.suppress(JobNotFoundError):
            return view.entry(job_id)
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
    peer = view.peers([record.job_id]).get(record.job_id)
    return None if peer is None or peer.state.is_final else record.job_id


def request_of(claim: Claim, parts: Sequence[Slice]) -> Request:
    """Return some slices of a claim as a job's request; of several sizes the largest."""
    return Request(
        max(part.memory_bytes for part in parts),
        len(parts),
        parts[0].compute_share,
        claim.priority,
        is_strict=claim.is_strict,
        sharing=claim.sharing,
        oversubscribes=claim.oversubscribes,
        objective=Objective.SOONEST,
    )


def check_room(claim: Claim, rooms: Mapping[str, GpuRoom], factor: float, holders: Sequence[Entry]) -> None:
    """Refuse a claim for which there is no room now.

    Args:
        claim: To be held.
        rooms: Of the node's GPUs, by UUID.
        factor: How far GPUs may be oversubscribed.
        holders: Jobs with slices, for the error message.

    Raises:
        RequestError: A GPU does not support the sharing mode.
        CapacityError: There is no room.
        NodeError: A GPU is not there.
    """
    for part in claim.slices:
        room = rooms.get(part.gpu_uuid)
        if room is None:
            raise NodeError(f"GPU {part.gpu_uuid} is not on this node now")
        mode = mode_of(claim.sharing)
        if not supports_mode(room.gpu, request_of(claim, claim.slices)):
            raise RequestError(
                f"{room.gpu.name} cannot be shared by MPS: it takes one of the Volta generation or later"
            )
        if not room.tenancy.admits(mode, KUBERNETES_UID, most_clients(room.gpu)):
            raise CapacityError(f"GPU {room.gpu.uuid} is in the mode {room.tenancy.mode} now, and cannot be in {mode}")
        needed_bytes = _device_bytes(claim, part, factor)
        if needed_bytes > room.free_bytes:
            raise CapacityError(
                f"{format_memory(needed_bytes)} do not fit on GPU {part.gpu_uuid} now: {format_memory(room.free_bytes)} of"
                f" {format_memory(room.capacity_bytes)} are free{_holders_text(part.gpu_uuid, holders)}"
            )
        if not has_compute(room.free_compute, part.compute_share or 0.0):
            raise CapacityError(f"{room.free_compute:.0%} of the time of GPU {part.gpu_uuid} are free now")


def check_host_room(claim: Claim, factor: float, holders: Sequence[Entry], available_bytes: int) -> None:
    """Raise CapacityError for an oversubscribing claim if its memory would not fit into the host's now."""
    if claim.oversubscribes:
        promised_bytes = sum(host_bytes(entry.job.lease.slices) for entry in holders if entry.job.lease is not None)
        requests = [(claim.uid, request_of(claim, claim.slices))]
        for why in short_of_host_memory(requests, promised_bytes, available_bytes, factor).values():
            raise CapacityError(f"claim {claim.namespace}/{claim.name} {why}")


def _device_bytes(claim: Claim, part: Slice, factor: float) -> int:
    return resident_bytes(part.memory_bytes, factor) if claim.oversubscribes else part.memory_bytes


def _holders_text(gpu_uuid: str, holders: Sequence[Entry]) -> str:
    names = [
        f"{entry.job.spec.name or entry.job.id} holds {format_memory(part.device_bytes)}"
        for entry in holders
        if entry.job.lease is not None
        for part in entry.job.lease.slices
        if part.gpu_uuid == gpu_uuid
    ]
    return f" ({', '.join(names)})" if names else ""


def put_granted_job(decision: Decision, claim: Claim, factor: float, gpu_model: str | None) -> str:
    """Write the job that stands for a claim, granted and not started, and return its id."""
    now_seconds = time.time()
    job_id = new_job_id()
    slices = claim.slices
    if claim.oversubscribes:
        slices = tuple(
            with_host_part(replace(part, memory_bytes=_device_bytes(claim, part, factor)), part.memory_bytes)
            for part in claim.slices
        )
    lease = Lease(job_id, slices, now_seconds, sharing=mode_of(claim.sharing))
    spec = JobSpec(
        (),
        "claim",
        environment=((CLAIM_VARIABLE, claim.uid),),
        working_directory="/",
        # The part of the job's id distinguishes claims of one name: one that was removed by force may not have left yet.
        name=f"{f'{claim.namespace}/{claim.name}' if claim.name else claim.uid}-{job_id[:_UID_DIGITS]}",
        wait_for_memory_seconds=claim.wait_for_memory_seconds,
    )
    job = Job(
        job_id,
        spec,
        request_of(claim, claim.slices),
        JobState.WAITING,
        now_seconds,
        owner_uid=KUBERNETES_UID,
        gpu_model=gpu_model,
    )
    # Stored and granted in one transaction: no round sees the job waiting.
    entry = decision.add(Entry(job), ())
    decision.put(replace(entry, job=replace(job, state=JobState.STARTING, lease=lease)))
    decision.held_claims.put(claim, job_id, now_seconds)
    return job_id
