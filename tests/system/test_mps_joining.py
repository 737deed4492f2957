"""How a job joins others under MPS: never beside strangers, never under a daemon that is not well, never unproved."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.ledger_entries import add
from tests.mps_world import until_gone
from tests.system.slice_stage import Stage, opened_stage
from tests.waiting import until

from pgpu.app.throwaway_jobs import hold_throwaway, run_throwaway
from pgpu.enforcement.mps import Health, MpsControl, MpsDaemons, MpsProof
from pgpu.enforcement.mps.control import Owns
from pgpu.engine.leases.mps_sharing import MpsSharing
from pgpu.engine.supervisor.clients import Clients
from pgpu.errors import EnforcementError, NotReadyError, RequestError
from pgpu.host.process_identity import identify_unreaped
from pgpu.ledger import Entry, Ledger
from pgpu.libraries import SIMULATED_MPS_CONTROL, library_path
from pgpu.model import Account, Delivery, Job, JobState, SharingMode
from pgpu.runtimes import Stdio
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.structs import replace

Look = Callable[[str, Owns], None]

OTHER_OWNER = 4711
FAULTY = """
import ctypes, signal
cuda, context, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
ptx = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry k() { ret; }\\n"
cuda.cuModuleLoadData(ctypes.byref(module), ptx)
cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k")
cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
signal.pause()
"""
"""Launches a kernel, which faults, and stays."""


@dataclass
class Party:
    """A GPU, its daemons, and the jobs that a ledger knows there."""

    stage: Stage
    sharing: MpsSharing
    runtime: ProcessRuntime
    is_advisory: bool
    stack: ExitStack

    @property
    def gpu_uuid(self) -> str:
        return self.stage.gpus[0].uuid

    def granted(self, *command: str, share: float | None = None, owner_uid: int = 0) -> Job:
        """A job that was granted its place under MPS and is in the ledger."""
        job = self.stage.job(command, is_advisory=self.is_advisory)
        assert job.lease is not None
        slices = tuple(replace(part, compute_share=share) for part in job.lease.slices)
        lease = replace(job.lease, slices=slices, sharing=SharingMode.MPS)
        job = replace(job, lease=lease, owner_uid=owner_uid, state=JobState.STARTING)
        add(self.sharing.ledger, Entry(replace(job, lease=None)))
        with self.sharing.ledger.decision() as decision:
            decision.put(replace(decision.entry(job.id), job=job))
        return job

    def running(self, job: Job) -> Job:
        """The same once its holder is known."""
        with self.sharing.ledger.decision() as decision:
            entry = decision.entry(job.id)
            decision.put(
                replace(entry, job=replace(entry.job, state=JobState.RUNNING, holder=identify_unreaped(os.getpid())))
            )
        return job

    def joined(self, job: Job) -> Delivery:
        """Join, as a supervisor does."""
        delivery = self.stack.enter_context(self.stage.prepared(job))
        return self.sharing.join(job, self.stage.gpus, delivery, self.stage.enforcer, None)

    def left(self, job: Job) -> None:
        """Give the lease back."""
        with self.sharing.ledger.decision() as decision:
            decision.put(replace(decision.entry(job.id), lease_released_at_seconds=1.0))
        assert job.lease is not None
        self.sharing.leave(job.lease)

    @property
    def control(self) -> MpsControl:
        daemon = self.sharing.daemons.of(self.gpu_uuid)
        generation = daemon.generation()
        assert generation is not None
        return daemon.control(generation)

    def health(self) -> Health:
        return self.sharing.daemons.of(self.gpu_uuid).health()

    def kill_daemon(self) -> None:
        pid = int((self.control.pipe_directory / "nvidia-cuda-mps-control.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        until_gone(pid)


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.userns), True], ids=["view", "preload"])
def party(request: pytest.FixtureRequest) -> Iterator[Party]:
    is_advisory = bool(request.param)
    with opened_stage() as stage, ExitStack() as stack:
        runtime = ProcessRuntime(can_make_views=lambda: not is_advisory)
        daemons = MpsDaemons(stage.directory, library_path(SIMULATED_MPS_CONTROL), stage.directory / "simgpu")
        ledger = Ledger(stage.directory / "ledger.db")
        stack.callback(ledger.close)
        proof = MpsProof(lambda *words: hold_throwaway(runtime, *words))
        made = Party(stage, MpsSharing(daemons, ledger, proof), runtime, is_advisory, stack)
        yield made
        daemon = daemons.of(made.gpu_uuid)
        with daemon.locked():
            daemon.end()


def probe(party: Party, delivery: Delivery) -> str:
    place = delivery.slice_directory if party.is_advisory else "/.pgpu"
    return f"{place}/pgpu-probe"


@contextmanager
def faulted(party: Party, job: Job, delivery: Delivery) -> Iterator[None]:
    """A program of a job that faulted and is still there."""
    with Path(os.devnull).open("r+b") as nothing:
        streams = Stdio(nothing.fileno(), nothing.fileno(), nothing.fileno())
        faulty = replace(delivery, environment=(*delivery.environment, ("PGPU_SIMGPU_FAULT_AT_LAUNCH", "1")))
        running = party.runtime.start(job, faulty, streams, lambda _: None)
        try:
            yield
        finally:
            running.kill()
            running.close()


def test_a_job_that_joined_is_a_client_with_its_share_of_the_multiprocessors(party: Party) -> None:
    job = party.granted("true", share=0.25)
    delivery = party.joined(job)
    told = replace(job, spec=replace(job.spec, command=(probe(party, delivery), "hold")))
    said = run_throwaway(party.runtime, told, delivery)
    assert "mps 1\n" in said
    assert "multiprocessors 20\n" in said


def test_who_drops_the_words_gets_no_more_than_the_largest_job_there(party: Party) -> None:
    small, large = party.granted("true", share=0.1), party.granted("true", share=0.5)
    party.joined(large)
    delivery = party.joined(small)
    bare = ("env", "-u", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", probe(party, delivery), "hold")
    said = run_throwaway(party.runtime, replace(small, spec=replace(small.spec, command=bare)), delivery)
    assert "multiprocessors 40\n" in said
    assert party.control.memory_limit() == "1G"


def test_jobs_of_one_owner_find_one_daemon_and_the_last_ends_it(party: Party) -> None:
    one, two = party.granted("true"), party.granted("true")
    first = party.joined(one).mps_pipe_directory
    assert party.joined(two).mps_pipe_directory == first
    party.left(one)
    assert party.health() is Health.WELL
    party.left(two)
    assert party.health() is Health.ABSENT


def test_a_parked_job_keeps_no_daemon(party: Party) -> None:
    parked, job = party.running(party.granted("true")), party.granted("true")
    with party.sharing.ledger.decision() as decision:
        decision.put(replace(decision.entry(parked.id), job=replace(parked, parked_at_seconds=1.0)))
    party.joined(job)
    party.left(job)
    assert party.health() is Health.ABSENT


def test_nobody_is_put_beside_another_owners_job(party: Party) -> None:
    party.joined(party.running(party.granted("true")))
    with pytest.raises(NotReadyError, match="trust"):
        party.joined(party.granted("true", owner_uid=OTHER_OWNER))


def test_where_nobody_is_left_another_owner_gets_a_new_daemon(party: Party) -> None:
    mine = party.granted("true")
    first = party.joined(mine).mps_pipe_directory
    with (
        party.sharing.ledger.decision() as decision
    ):  # its lease was given back by one who was killed before the daemon's end
        decision.put(replace(decision.entry(mine.id), lease_released_at_seconds=1.0))
    assert party.joined(party.granted("true", owner_uid=OTHER_OWNER)).mps_pipe_directory != first


def test_after_a_daemon_died_nobody_joins_until_its_jobs_have_gone(party: Party) -> None:
    early = party.running(party.granted("true"))
    party.joined(early)
    party.kill_daemon()
    late = party.granted("true")
    with pytest.raises(NotReadyError, match="died"):
        party.joined(late)
    party.left(early)
    assert party.joined(late).mps_pipe_directory
    assert party.health() is Health.WELL
    kinds = [event.kind for event in party.sharing.ledger.events.after(0, 100)]
    assert "mps-restarted" in kinds


def test_nobody_joins_a_server_that_recovers_from_a_fault(party: Party) -> None:
    job = party.granted(sys.executable, "-c", FAULTY)
    with faulted(party, job, party.joined(job)):
        until(lambda: party.health() is Health.FAULT)
        with pytest.raises(NotReadyError, match="fault"):
            party.joined(party.granted("true"))
    until(lambda: party.health() is Health.WELL)
    assert party.joined(party.granted("true")).mps_pipe_directory


def test_a_job_whose_programs_would_not_be_clients_is_not_started(party: Party) -> None:
    def astray(job: Job, delivery: Delivery, account: Account | None, look: Look) -> None:
        words = tuple(word for word in delivery.environment if word[0] != "CUDA_MPS_PIPE_DIRECTORY")
        hold_throwaway(party.runtime, job, replace(delivery, environment=words), account, look)

    party.sharing = replace(party.sharing, proof=MpsProof(astray))
    with pytest.raises(EnforcementError, match="no client"):
        party.joined(party.granted("true"))


def test_a_server_that_dies_during_the_proof_costs_no_job(party: Party) -> None:
    tries: list[str] = []

    def killing(job: Job, delivery: Delivery, account: Account | None, look: Look) -> None:
        def then(text: str, owns: Owns) -> None:
            if not tries:
                kill_servers(party)
            tries.append(text)
            look(text, owns)

        hold_throwaway(party.runtime, job, delivery, account, then)

    party.sharing = replace(party.sharing, proof=MpsProof(killing))
    party.joined(party.granted("true"))
    assert len(tries) == 2


def test_a_job_whose_server_died_before_anybody_looked_says_so(party: Party) -> None:
    job = party.granted("true")
    party.joined(job)
    assert Clients(party.sharing.daemons, party.stage.source).loss(job) is None
    kill_servers(party)
    assert "MPS server of GPU" in str(Clients(party.sharing.daemons, party.stage.source).loss(job))


def test_who_joins_where_a_server_died_finds_another_one(party: Party) -> None:
    for _ in range(2):
        job = party.granted("true")
        party.joined(job)
        assert party.control.servers()
        assert party.sharing.daemons.of(party.gpu_uuid).servers_at_start(job.id) == set(party.control.servers() or ())
        kill_servers(party)


def test_a_daemon_that_dies_during_the_proof_lets_the_job_try_again(party: Party) -> None:
    def killing(job: Job, delivery: Delivery, account: Account | None, look: Look) -> None:
        def then(text: str, owns: Owns) -> None:
            party.kill_daemon()
            look(text, owns)

        hold_throwaway(party.runtime, job, delivery, account, then)

    whole = party.sharing
    party.sharing = replace(party.sharing, proof=MpsProof(killing))
    job = party.granted("true")
    with pytest.raises(NotReadyError, match="failed while"):
        party.joined(job)
    party.sharing = whole
    assert party.joined(job).mps_pipe_directory


def kill_servers(party: Party) -> None:
    for pid in party.control.servers() or ():
        os.kill(pid, signal.SIGKILL)
        until_gone(pid)
    until(lambda: party.control.servers() == [])


def test_a_job_whose_programs_run_as_another_user_is_not_started(party: Party) -> None:
    def as_ourselves(job: Job, delivery: Delivery, _account: Account | None, look: Look) -> None:
        hold_throwaway(party.runtime, job, delivery, None, look)

    party.sharing = replace(party.sharing, proof=MpsProof(as_ourselves))
    job = party.granted("true")
    delivery = party.stack.enter_context(party.stage.prepared(job))
    stranger = Account(uid=os.geteuid() + 1, gid=os.getegid())
    with pytest.raises(RequestError, match=f"run as user {os.geteuid()}"):
        party.sharing.join(job, party.stage.gpus, delivery, party.stage.enforcer, stranger)


def test_a_sweep_ends_daemons_that_nobody_is_on_and_no_others(party: Party) -> None:
    job = party.granted("true")
    party.joined(job)
    party.sharing.sweep(party.stage.gpus)
    assert party.health() is Health.WELL
    with party.sharing.ledger.decision() as decision:
        decision.put(replace(decision.entry(job.id), lease_released_at_seconds=1.0))
    party.sharing.sweep(party.stage.gpus)
    assert party.health() is Health.ABSENT
