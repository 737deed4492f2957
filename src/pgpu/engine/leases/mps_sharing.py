"""MPS control daemons of the GPUs: one runs exactly as long as jobs of the ledger are its clients.

Any process of pgpu starts and ends daemons, under one file lock for each GPU. Only jobs of one user share a daemon: clients of
one server can fault together. A job waits (`NotReadyError`) while a daemon recovers, or until the clients of a dead one have
ended.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.enforcement.mps import GpuDaemon, Health, MpsControl, MpsDaemons, MpsProof, percentage_of
from pgpu.enforcement.mps.control import environment_of
from pgpu.enforcement.mps.daemon import Generation
from pgpu.enforcement.self_test import throwaway, way_into
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.engine.leases.mps_obstacles import refuse_obstacle, requested_uid
from pgpu.errors import EnforcementError, NodeError, NotReadyError, PgpuBug, RequestError
from pgpu.host.stderr_log import say
from pgpu.ledger import Entry, Ledger
from pgpu.libraries import PROBE
from pgpu.model import Account, Delivery, Gpu, Job, JobSpec, Lease, SharingMode, Slice
from pgpu.structs import Struct, replace


class MpsSharing(Struct, frozen=True):
    """The daemons of all GPUs for the jobs of one ledger."""

    daemons: MpsDaemons
    ledger: Ledger
    proof: MpsProof

    def join(
        self, job: Job, gpus: Sequence[Gpu], delivery: Delivery, enforcer: Enforcer, account: Account | None
    ) -> Delivery:
        """Start or find the daemon for a job that is about to start, and prove that its programs become clients.

        Args:
            job: With its lease, granted and not started.
            gpus: The lease's one GPU.
            delivery: Made by the enforcer; the job's slice is enforced under MPS, too.
            enforcer: Makes the slice of the throw-away job of the proof.
            account: Under which the job runs; None for this process's own.

        Returns:
            The delivery with the environment and the mount of MPS.

        Raises:
            NotReadyError: The daemon is being drained; try again.
            RequestError: Such a job cannot be a client of MPS on this GPU.
            EnforcementError: The daemon does not start, or the job's programs do not become its clients.
        """
        if len(gpus) != 1:
            raise RequestError("MPS is for jobs on one GPU", hint="leave --gpus or --sharing out")
        gpu = gpus[0]
        refuse_obstacle(job.spec)
        daemon = self.daemons.of(gpu.uuid)
        with daemon.locked():
            # Only one user's jobs meet: clients of one server fault together. One user's jobs may read each other's memory
            # by other ways anyway.
            trust = f"{job.owner_uid}/{_client_uid(job.spec, account)}"
            generation = self._running_daemon(daemon, job, gpu, trust)
            control = daemon.control(generation)
            self._limit(control, job, gpu.uuid)
            daemon.enter(generation, job.id)
            joined = _make_client(delivery, job, control)
        self._prove(daemon, generation, job, gpu, enforcer, account)
        daemon.remember_servers(generation, job.id)
        return joined

    def leave(self, lease: Lease) -> None:
        """Stop the daemon of a released lease, unless another job is its client.

        Raises:
            NodeError: The ledger or the daemon's directory cannot be used.
        """
        if lease.sharing is not SharingMode.MPS:
            return
        for part in lease.slices:
            daemon = self.daemons.of(part.gpu_uuid)
            # Jobs join under the same lock, so none can join a daemon that is being ended.
            with daemon.locked():
                if not self._clients(part.gpu_uuid):
                    daemon.end()

    def sweep(self, gpus: Sequence[Gpu]) -> None:
        """Stop daemons without clients, which killed processes left.

        Raises:
            NodeError: The ledger or a daemon's directory cannot be used.
        """
        for gpu in gpus:
            daemon = self.daemons.of(gpu.uuid)
            if daemon.generation() is None or self._clients(gpu.uuid):
                continue
            with daemon.locked():
                if not self._clients(gpu.uuid):
                    daemon.end()

    def is_server(self, gpu_uuid: str, pid: int) -> bool:
        """Whether a process that holds memory of a GPU is a server of one of these daemons."""
        with suppress(NodeError, OSError):
            command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
            return command.startswith("nvidia-cuda-mps") and pid in self.daemons.of(gpu_uuid).server_pids()
        return False

    def _clients(self, gpu_uuid: str, but: str | None = None) -> list[Entry]:
        """Return the jobs of the ledger that are under MPS on a GPU, without the one with the id `but`."""
        with self.ledger.view() as view:
            return [
                entry
                for entry in view.holding()
                if entry.job.id != but and entry.is_counted and _part_of(entry.job.lease, gpu_uuid) is not None
            ]

    def _running_daemon(self, daemon: GpuDaemon, job: Job, gpu: Gpu, trust: str) -> Generation:
        # Called under the GPU's lock.
        others = [entry for entry in self._clients(gpu.uuid, but=job.id) if entry.job.holder is not None]
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
        # Programs that drop the job's environment get the daemon's defaults: those of the largest job there.
        parts = [_part_of(entry.job.lease, gpu_uuid) for entry in self._clients(gpu_uuid, but=job.id)]
        present = [part for part in (*parts, _lease_of(job).slices[0]) if part is not None]
        control.set_percentage(max(percentage_of(part.compute_share) for part in present))
        control.set_memory_limit(max(part.memory_bytes for part in present))

    def _prove(  # noqa: PLR0917 - what a proof holds for
        self, daemon: GpuDaemon, generation: Generation, job: Job, gpu: Gpu, enforcer: Enforcer, account: Account | None
    ) -> None:
        way = f"{way_into(job)}/{job.owner_uid}"
        if daemon.is_proved(generation, way) and daemon.server_pids():
            return  # With a server gone the proof runs again: it starts the next one.
        try:
            self._run_proof(daemon.control(generation), job, gpu, enforcer, account)
        except EnforcementError as exc:
            if daemon.health() is not Health.WELL:
                raise NotReadyError(f"the MPS daemon of {gpu.name} failed while a job joined it") from exc
            # A server that was killed took the throw-away job with it; the next client starts another server.
            self._run_proof(daemon.control(generation), job, gpu, enforcer, account)
        daemon.remember_proof(generation, way)

    def _run_proof(self, control: MpsControl, job: Job, gpu: Gpu, enforcer: Enforcer, account: Account | None) -> None:
        """Run the throw-away job of the proof in a slice of its own."""
        test = throwaway(job, gpu)
        delivery = enforcer.prepare(test, [gpu])
        try:
            program = (delivery.slice_directory if _lease_of(job).is_advisory else IN_JOB) / PROBE
            held = replace(test, spec=replace(test.spec, command=(str(program), "hold"), wants_stdin=True))
            self.proof.prove(
                held, _make_client(delivery, test, control), control, account, _client_uid(job.spec, account)
            )
        finally:
            enforcer.release(_lease_of(test))


def leave_mps(mps: MpsSharing | None, lease: Lease | None) -> None:
    """Stop the daemon of a released lease if it has no other clients; a failure is logged, and `sweep` tries again."""
    try:
        if mps is not None and lease is not None:
            mps.leave(lease)
    except NodeError as exc:
        say(str(exc))


def _client_uid(spec: JobSpec, account: Account | None) -> int:
    # The UID under which the job's programs run on this machine; the proof fails where an image has another user.
    if account is not None:
        return account.uid
    return os.geteuid() if spec.runtime == "process" else int(requested_uid(spec.user))


def _make_client(delivery: Delivery, job: Job, control: MpsControl) -> Delivery:
    """Return a delivery with the environment and the mount that make a job's programs clients."""
    if _lease_of(job).is_advisory:
        place = control.pipe_directory
    else:
        place = IN_JOB / "mps"
        try:
            (delivery.slice_directory / "mps").mkdir(exist_ok=True)
            (delivery.slice_directory / "mps").chmod(0o755)  # whatever the umask is: the job may run as another user
        except OSError as exc:
            raise EnforcementError(f"{delivery.slice_directory / 'mps'} cannot be made: {exc.strerror}") from exc
    words = environment_of(_lease_of(job).slices[0], place)
    return replace(delivery, mps_pipe_directory=control.pipe_directory, environment=(*delivery.environment, *words))


def _lease_of(job: Job) -> Lease:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} joins others without a lease")
    return job.lease


def _part_of(lease: Lease | None, gpu_uuid: str) -> Slice | None:
    if lease is None or lease.sharing is not SharingMode.MPS:
        return None
    return next((part for part in lease.slices if part.gpu_uuid == gpu_uuid), None)
