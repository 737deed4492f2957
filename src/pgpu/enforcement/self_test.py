"""Proves that a limit binds: a throwaway process, started through the same delivery, allocates more than its slice.

The result is cached for this boot, driver, enforcer, way of delivery and the contents of shim and image. An allocation that
fails because the GPU itself is full proves nothing: where there is a meter, it must have counted the failure.
"""

from collections.abc import Callable

from pgpu.digests import sha256
from pgpu.enforcement import Enforcer, Facts
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.errors import EnforcementError, PgpuBug
from pgpu.host.process_identity import boot_id
from pgpu.libraries import PROBE
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.structs import replace

RunThrowaway = Callable[[Job, Delivery], str | None]
"""Starts a job through the runtime of its spec and returns its standard output; None if no program of such a job could load a
driver, so that there is nothing to limit."""

ContentId = Callable[[Job], str]
"""Identifies the files that a job's delivery depends on, the shim's and its image's, by their content: a tag such as `app:latest`
may name another image after the next build, in which the shim may not be readable."""

_PASSED = "passed"
_SUCCESS = "0"
_OUT_OF_MEMORY = "2"


class SelfTest:
    """Runs self-tests and caches their results."""

    def __init__(
        self, facts: Facts, run: RunThrowaway, content_id: ContentId, read_boot_id: Callable[[], str] = boot_id
    ) -> None:
        self._facts = facts
        self._run = run
        self._content_id = content_id
        self._read_boot_id = read_boot_id
        self._passed: set[str] = set()
        """Keys of the facts that this process has seen."""

    def prove(self, enforcer: Enforcer, job: Job, gpu: Gpu, *, is_metered: bool = True) -> None:
        """Ensure that this enforcer binds on this GPU for jobs with the same delivery as this one.

        The test uses the job's own slice, which is granted and not used yet.

        Args:
            enforcer: To be tested.
            job: About to start; its command is not run.
            gpu: One of its GPUs.
            is_metered: True if the enforcer itself counts failed allocations, so that one failure at least must be counted; False
                if the meter must not have caused the failure.

        Raises:
            EnforcementError: An allocation past the slice succeeded, or the test could not be run.
        """
        key = f"self-test/{self._read_boot_id()}/{gpu.name}/{gpu.driver_version}/{enforcer.name}/{way_into(job)}/{self._content_id(job)}"
        if key in self._passed:
            return
        if self._facts.get(key) != _PASSED:
            self._try(enforcer, throwaway(job, gpu), gpu, is_metered=is_metered)
            # Only a success is cached: a failure may have a cause that is fixed before the next job. Two processes may test at once.
            self._facts.put(key, _PASSED)
        self._passed.add(key)

    @staticmethod
    def forget(enforcer: Enforcer, lease: Lease) -> None:
        """Remove the files that a test for this lease's job left if its process was killed; usually there are none."""
        enforcer.release(replace(lease, job_id=id_of_test(lease.job_id)))

    def _try(self, enforcer: Enforcer, test: Job, gpu: Gpu, *, is_metered: bool) -> None:
        delivery = enforcer.prepare(test, [gpu])
        lease = _lease_of(test)
        try:
            program = (delivery.slice_directory if lease.is_advisory else IN_JOB) / PROBE
            past_the_slice = (str(program), "allocate", str(lease.slices[0].memory_bytes))
            text = self._run(replace(test, spec=replace(test.spec, command=past_the_slice)), delivery)
            # Read before `release`, which removes the usage file.
            refusals = sum(use.refusals for use in enforcer.use(lease))
        finally:
            enforcer.release(lease)
        if text is not None:
            _judge(parse_answers(text), enforcer, gpu, is_ours=(refusals > 0) == is_metered)


def _judge(answers: dict[str, str], enforcer: Enforcer, gpu: Gpu, *, is_ours: bool) -> None:
    if answers.get("context") != _SUCCESS:
        results = ", ".join(f"{step} {answer}" for step, answer in answers.items()) or "nothing"
        raise EnforcementError(
            f"the self-test of the {enforcer.name} enforcer cannot use {gpu.name}; the driver returned: {results}",
            hint="`pgpu doctor` shows what works here",
        )
    if answers.get("allocate") != _OUT_OF_MEMORY or not is_ours:
        raise EnforcementError(
            f"the {enforcer.name} enforcer does not bind on {gpu.name}: more than the slice could be allocated",
            hint="nothing is started without a limit; please report this with the output of `pgpu doctor`",
        )


def throwaway(job: Job, gpu: Gpu) -> Job:
    """Return a copy of a job with a slice of one GPU and an ID derived from the job's."""
    lease = _lease_of(job)
    part = next(part for part in lease.slices if part.gpu_uuid == gpu.uuid)
    job_id = id_of_test(job.id)
    # A container's working directory may be closed to its user, so its test runs in /. A process's test uses the job's own.
    place = "/" if job.spec.runtime == "docker" else job.spec.working_directory
    spec = replace(job.spec, name=None, wants_tty=False, wants_stdin=False, remove=True, working_directory=place)
    # It must be refused: to a shim, a slice that the driver keeps looks like a device that is full for a while.
    spec = replace(spec, wait_for_memory_seconds=0.0)
    # Nor does its slice grow: no agent would answer a wish of it, and the shim waits half a minute for each answer.
    request = replace(job.request, is_estimated=False, basis=None)
    slices = (part,)
    return replace(job, id=job_id, spec=spec, request=request, lease=replace(lease, job_id=job_id, slices=slices))


def id_of_test(job_id: str) -> str:
    """Return the id of the slice in which the enforcer of a job is tested."""
    return sha256(f"self-test of {job_id}".encode()).hexdigest()[:12]


def _lease_of(job: Job) -> Lease:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} has no lease to prove")
    return job.lease


def way_into(job: Job) -> str:
    """Return the key of a job's way of delivery; a result is valid for this key only."""
    if job.spec.runtime in {"docker", "oci"}:
        # Another image or user may be unable to read the shim.
        place = f"container/{job.spec.image}/{job.spec.user or ''}"
    else:
        place = "preload" if _lease_of(job).is_advisory else "view"
    return place + ("/pageable" if job.request.oversubscribes else "")


def parse_answers(text: str) -> dict[str, str]:
    """Parse the probe's output: for each step, the CUresult of the driver."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
