"""Who is on a GPU's MPS control daemon, and that there is one exactly as long as jobs are on it.

Any process of pgpu starts and ends daemons, under each GPU's own lock; who is on one the ledger says. This module refuses
to bring jobs together that don't trust each other, and to start one under a daemon that is not well: it waits until those
that are left there have gone.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.enforcement.mps import GpuDaemon, Health, MpsControl, MpsDaemons, MpsProof, percentage_of
from pgpu.enforcement.mps.client import environment_of
from pgpu.enforcement.mps.daemon import Generation
from pgpu.enforcement.self_test import throwaway, way_into
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.errors import EnforcementError, NodeError, NotReadyError, PgpuBug, RequestError
from pgpu.ledger import Entry, Ledger
from pgpu.libraries import PROBE
from pgpu.model import Account, Delivery, Gpu, Job, JobSpec, Lease, Request, SharingMode, SharingWish, Slice

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MpsSharing:
    """The daemons of all GPUs, for the jobs of one ledger."""

    daemons: MpsDaemons
    ledger: Ledger
    proof: MpsProof

    def join(
        self, job: Job, gpus: Sequence[Gpu], delivery: Delivery, enforcer: Enforcer, account: Account | None
    ) -> Delivery:
        """Have a daemon ready for a job that is about to start, and prove that its programs will be clients.

        Args:
            job: With its lease, granted and not started.
            gpus: The lease's one GPU.
            delivery: What the enforcer made; the job's slice stays in force under MPS.
            enforcer: Makes the slice of the throw-away job.
            account: Under which the job runs; None for this process's own.

        Returns:
            The delivery with the words and the mount of MPS.

        Raises:
            NotReadyError: The daemon is being drained; ask again.
            RequestError: Such a job cannot be a client of MPS on this GPU.
            EnforcementError: The daemon does not start, or the job's programs are no clients of it.
        """
        gpu = _only(gpus)
        _refuse_spec(job.spec)
        daemon = self.daemons.of(gpu.uuid)
        with daemon.locked():
            generation = self._present(daemon, job, gpu, _trust(job, account))
            control = daemon.control(generation)
            self._limit(control, job, gpu.uuid)
            daemon.enter(generation, job.id)
            joined = _joined(delivery, job, control)
        self._prove(daemon, generation, job, gpu, enforcer, account)
        daemon.remember_servers(generation, job.id)
        return joined

    def leave(self, lease: Lease) -> None:
        """End the daemon of a lease that was given back, unless another job is on it.

        Raises:
            NodeError: The ledger or the daemon's directory cannot be used.
        """
        if lease.sharing is not SharingMode.MPS:
            return
        for part in lease.slices:
            daemon = self.daemons.of(part.gpu_uuid)
            with daemon.locked():
                if not self._on(part.gpu_uuid):
                    daemon.end()

    def sweep(self, gpus: Sequence[Gpu]) -> None:
        """End what killed processes left: daemons of GPUs that no job is on.

        Raises:
            NodeError: The ledger or a daemon's directory cannot be used.
        """
        for gpu in gpus:
            daemon = self.daemons.of(gpu.uuid)
            if daemon.generation() is None or self._on(gpu.uuid):
                continue
            with daemon.locked():
                if not self._on(gpu.uuid):
                    daemon.end()

    def is_server(self, gpu_uuid: str, pid: int) -> bool:
        """Whether a process that holds memory of a GPU is a server of ours there."""
        with suppress(NodeError):
            return _is_called_server(pid) and pid in self.daemons.of(gpu_uuid).server_pids()
        return False

    def _on(self, gpu_uuid: str, but: str | None = None) -> list[Entry]:
        with self.ledger.view() as view:
            return [
                entry
                for entry in view.holding()
                if entry.job.id != but and entry.is_counted and _part_of(entry.job.lease, gpu_uuid) is not None
            ]

    def _present(self, daemon: GpuDaemon, job: Job, gpu: Gpu, trust: str) -> Generation:
        """Return the daemon that a job may join, started where there is none."""
        others = [entry for entry in self._on(gpu.uuid, but=job.id) if entry.job.holder is not None]
        generation, health = daemon.generation(), daemon.health()
        if health is Health.FAULT:
            raise NotReadyError(f"the MPS server of {gpu.name} recovers from a fault of one of its clients")
        if health is Health.SILENT and others:
            raise NotReadyError(f"the MPS control daemon of {gpu.name} does not answer for the moment")
        if health is Health.GONE and others:
            raise NotReadyError(
                f"the MPS control daemon of {gpu.name} died, and {len(others)} of its jobs have not ended yet"
            )
        if health in {Health.GONE, Health.SILENT}:
            how = "died" if health is Health.GONE else "hangs"
            self.ledger.events.note(
                "mps-restarted", f"the MPS control daemon of GPU {gpu.uuid} {how} and is started anew"
            )
        if generation is None or health is not Health.WELL:
            return daemon.start(trust)
        if generation.trust == trust:
            return generation
        if others:
            raise NotReadyError(f"jobs that do not trust this one are on {gpu.name} under MPS")
        return daemon.start(trust)

    def _limit(self, control: MpsControl, job: Job, gpu_uuid: str) -> None:
        """What a program gets that drops the job's own words: never more than the largest job there."""
        parts = [_part_of(entry.job.lease, gpu_uuid) for entry in self._on(gpu_uuid, but=job.id)]
        present = [part for part in (*parts, _slice_of(job)) if part is not None]
        control.set_percentage(max(percentage_of(part.compute_share) for part in present))
        control.set_memory_limit(max(part.memory_bytes for part in present))

    def _prove(  # noqa: PLR0917 - what a proof holds for
        self, daemon: GpuDaemon, generation: Generation, job: Job, gpu: Gpu, enforcer: Enforcer, account: Account | None
    ) -> None:
        way = f"{way_into(job)}/{job.owner_uid}"
        if daemon.is_proved(generation, way) and daemon.server_pids():
            return  # Where a server died the probe starts the next one, so that none can die that nobody has seen.
        try:
            self._try(daemon.control(generation), job, gpu, enforcer, account)
        except EnforcementError as exc:
            if daemon.health() is not Health.WELL:
                raise NotReadyError(f"the MPS daemon of {gpu.name} failed while a job joined it") from exc
            # A server that was killed took the probe with it; the next client gets another one.
            self._try(daemon.control(generation), job, gpu, enforcer, account)
        daemon.remember_proof(generation, way)

    def _try(self, control: MpsControl, job: Job, gpu: Gpu, enforcer: Enforcer, account: Account | None) -> None:
        """Run the throw-away job, in a slice of its own."""
        test = throwaway(job, gpu)
        delivery = enforcer.prepare(test, [gpu])
        try:
            program = (delivery.slice_directory if _lease_of(job).is_advisory else IN_JOB) / PROBE
            held = replace(test, spec=replace(test.spec, command=(str(program), "hold"), wants_stdin=True))
            self.proof.prove(held, _joined(delivery, test, control), control, account, _client_uid(job.spec, account))
        finally:
            enforcer.release(_lease_of(test))


def leave_mps(mps: MpsSharing | None, lease: Lease | None) -> None:
    """End the daemon of a lease that was given back, if it was the last there; what cannot be ended is swept up later."""
    try:
        if mps is not None and lease is not None:
            mps.leave(lease)
    except NodeError as exc:
        _LOG.warning("%s", exc)


def refuse_what_cannot_join(spec: JobSpec, request: Request) -> None:
    """Refuse a job that asks for MPS and could never be a client of it, before anything is stored.

    Raises:
        RequestError: Its programs cannot be clients.
    """
    if request.sharing is SharingWish.MPS:
        _refuse_spec(spec)


def mps_obstacle(runtime: str, user: str | None) -> RequestError | None:
    """Return why programs of such a job can be no clients of MPS; None where only their start would tell.

    Args:
        runtime: By which it is run.
        user: Of its container, as it was asked for.
    """
    if runtime == "process":
        return None
    uid, own_uid = _user_of(user), os.geteuid()
    if not uid.isdigit():
        return RequestError(
            f"under MPS a container's user must be known, and {user} is a name that only its image knows",
            hint="write --user UID[:GID] in numbers",
        )
    if own_uid not in {0, int(uid)}:
        return RequestError(
            f"under MPS a container's user must be the one that runs pgpu, {own_uid}, and is {uid}",
            hint=f"add --user {own_uid}",
        )
    return None


def _refuse_spec(spec: JobSpec) -> None:
    found = mps_obstacle(spec.runtime, spec.user)
    if found is not None:
        raise found


def _user_of(user: str | None) -> str:
    """The image's own user is not asked for: where it is not root, the proof says so."""
    return (user or "0").split(":")[0]


def _trust(job: Job, account: Account | None) -> str:
    """Name those whose clients may meet: one owner's, as one user of this machine.

    Clients of one server fault together, and one user's may read each other's memory by other ways anyway.
    """
    return f"{job.owner_uid}/{_client_uid(job.spec, account)}"


def _client_uid(spec: JobSpec, account: Account | None) -> int:
    """Return as whom a job's programs run, as this machine sees them; the proof finds out where an image says otherwise."""
    if account is not None:
        return account.uid
    return os.geteuid() if spec.runtime == "process" else int(_user_of(spec.user))


def _joined(delivery: Delivery, job: Job, control: MpsControl) -> Delivery:
    """Add what makes a job's programs clients."""
    if _lease_of(job).is_advisory:
        place = control.pipe_directory
    else:
        place = IN_JOB / "mps"
        try:
            (delivery.slice_directory / "mps").mkdir(exist_ok=True)
            (delivery.slice_directory / "mps").chmod(0o755)  # whatever the umask says: the job may be another user
        except OSError as exc:
            raise EnforcementError(f"{delivery.slice_directory / 'mps'} cannot be made: {exc.strerror}") from exc
    words = environment_of(_slice_of(job), place)
    return replace(delivery, mps_pipe_directory=control.pipe_directory, environment=(*delivery.environment, *words))


def _only(gpus: Sequence[Gpu]) -> Gpu:
    if len(gpus) != 1:
        raise RequestError("MPS is for jobs on one GPU", hint="leave --gpus or --sharing out")
    return gpus[0]


def _lease_of(job: Job) -> Lease:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} joins others without a lease")
    return job.lease


def _slice_of(job: Job) -> Slice:
    return _lease_of(job).slices[0]


def _part_of(lease: Lease | None, gpu_uuid: str) -> Slice | None:
    if lease is None or lease.sharing is not SharingMode.MPS:
        return None
    return next((part for part in lease.slices if part.gpu_uuid == gpu_uuid), None)


def _is_called_server(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").startswith("nvidia-cuda-mps")
    return False
