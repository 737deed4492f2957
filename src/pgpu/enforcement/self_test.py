"""Proves that a limit binds: a throw-away process, started through the same delivery, asks for more than its slice.

What is proved once holds for this boot, driver, enforcer, way of delivery and the contents of shim and image. This module refuses to take a driver's
own shortage for a refusal of ours: where there is a meter, it must have counted the refusal.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace

from pgpu.enforcement import Enforcer
from pgpu.enforcement.remembered import Facts
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.errors import EnforcementError, PgpuBug
from pgpu.host.process_identity import boot_id
from pgpu.libraries import PROBE
from pgpu.model import Delivery, Gpu, Job, Lease

RunThrowaway = Callable[[Job, Delivery], str | None]
"""Starts a job through the runtime that its spec names and returns what it wrote to standard output; None where no program
of such a job could load a driver, so that there is nothing to limit."""

ContentId = Callable[[Job], str]
"""Names the files that a job's delivery depends on, the shim's and its image's, by what is in them: a name such as `app:latest`
stands for another image after the next build, which the shim may not be readable in."""

_PASSED = "passed"
_SUCCESS = "0"
_OUT_OF_MEMORY = "2"


class SelfTest:
    """Remembers what was proved, and proves the rest."""

    def __init__(
        self, facts: Facts, run: RunThrowaway, content_id: ContentId, read_boot_id: Callable[[], str] = boot_id
    ) -> None:
        self._facts = facts
        self._run = run
        self._content_id = content_id
        self._read_boot_id = read_boot_id

    def prove(self, enforcer: Enforcer, job: Job, gpu: Gpu, *, is_metered: bool = True) -> None:
        """Make sure that this enforcer binds on this GPU for jobs that are delivered like this one.

        The slice of the test is the job's own, which is granted and not used yet.

        Args:
            enforcer: To be proved.
            job: About to start; its command is not run.
            gpu: One of its GPUs.
            is_metered: Whether the enforcer itself counts refusals, so that one that it did not count is not its own; False
                for one whose refusals must not be the meter's.

        Raises:
            EnforcementError: An allocation past the slice was not refused, or the test could not be run.
        """
        key = f"self-test/{self._read_boot_id()}/{gpu.name}/{gpu.driver_version}/{enforcer.name}/{way_into(job)}/{self._content_id(job)}"
        if self._facts.get(key) == _PASSED:
            return
        self._try(enforcer, throwaway(job, gpu), gpu, is_metered=is_metered)
        self._facts.put(key, _PASSED)

    @staticmethod
    def forget(enforcer: Enforcer, lease: Lease) -> None:
        """Remove what a test for this lease's job left whose process was killed in the middle; nothing in most cases."""
        enforcer.release(replace(lease, job_id=_id_of_test(lease.job_id)))

    def _try(self, enforcer: Enforcer, test: Job, gpu: Gpu, *, is_metered: bool) -> None:
        delivery = enforcer.prepare(test, [gpu])
        lease = _lease_of(test)
        try:
            program = (delivery.slice_directory if lease.is_advisory else IN_JOB) / PROBE
            past_the_slice = (str(program), "allocate", str(lease.slices[0].memory_bytes))
            text = self._run(replace(test, spec=replace(test.spec, command=past_the_slice)), delivery)
            refusals = sum(use.refusals for use in enforcer.use(lease))
        finally:
            enforcer.release(lease)
        if text is not None:
            _judge(_answers(text), enforcer, gpu, is_ours=(refusals > 0) == is_metered)


def _judge(answers: dict[str, str], enforcer: Enforcer, gpu: Gpu, *, is_ours: bool) -> None:
    if answers.get("context") != _SUCCESS:
        said = ", ".join(f"{step} {answer}" for step, answer in answers.items()) or "nothing"
        raise EnforcementError(
            f"the self-test of the {enforcer.name} enforcer cannot use {gpu.name}; the driver said: {said}",
            hint="`pgpu doctor` shows what works here",
        )
    if answers.get("allocate") != _OUT_OF_MEMORY or not is_ours:
        raise EnforcementError(
            f"the {enforcer.name} enforcer does not bind on {gpu.name}: more than the slice could be allocated",
            hint="nothing is started without a limit; please report this with the output of `pgpu doctor`",
        )


def throwaway(job: Job, gpu: Gpu) -> Job:
    """Return a job like this one, with a slice of one GPU, that only who knows this one can find."""
    lease = _lease_of(job)
    part = next(part for part in lease.slices if part.gpu_uuid == gpu.uuid)
    job_id = _id_of_test(job.id)
    # A container's own directory may be closed to its user, which is the job's affair; a process has none without.
    place = "/" if job.spec.runtime == "docker" else job.spec.working_directory
    spec = replace(job.spec, name=None, wants_tty=False, wants_stdin=False, remove=True, working_directory=place)
    slices = (part,)
    return replace(job, id=job_id, spec=spec, lease=replace(lease, job_id=job_id, slices=slices))


def _id_of_test(job_id: str) -> str:
    return hashlib.sha256(f"self-test of {job_id}".encode()).hexdigest()[:12]


def _lease_of(job: Job) -> Lease:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} has no lease to prove")
    return job.lease


def way_into(job: Job) -> str:
    """Name the way in which a job is delivered: what was proved of one holds for no other."""
    return _place(job) + ("/pageable" if job.request.oversubscribes else "")


def _place(job: Job) -> str:
    """Say how the shim gets into the job: another image or user may be unable to read it, a view cannot."""
    if job.spec.runtime in {"docker", "oci"}:
        return f"container/{job.spec.image}/{job.spec.user or ''}"
    return "preload" if _lease_of(job).is_advisory else "view"


def _answers(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
