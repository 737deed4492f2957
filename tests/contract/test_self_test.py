"""A proof that a limit binds holds for this boot, driver, enforcer and delivery; and each lease has its own enforcer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fakes.enforcers import Binding

from pgpu.enforcement import Enforcer
from pgpu.enforcement.enforcer_selector import EnforcerCandidate, EnforcerSelector
from pgpu.enforcement.self_test import SelfTest, throwaway
from pgpu.enforcement.shim import shims_id
from pgpu.libraries import CUDA_SHIM, ENTER, NVML_SHIM, PROBE
from pgpu.model import Delivery, Gpu, Job, JobSpec, JobState, Lease, Request, SharingMode, Slice
from pgpu.scheduling.slice_growth import grows
from pgpu.structs import replace

GPU = Gpu("GPU-1", "One", 0, 100, "1.0", is_simulated=False)
LEASE = Lease("0123456789ab", (Slice("GPU-1", 50),), 0.0)
JOB = Job("0123456789ab", JobSpec(("true",), "process"), Request(50), JobState.STARTING, 0.0, lease=LEASE)
CONTAINER = replace(JOB, spec=JobSpec((), "docker", image="one"))


class Memory(dict[str, str]):
    """Facts without a ledger."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


class Proofs:
    """Counts the throw-away jobs of one machine."""

    def __init__(self, *read_boot_id: Callable[[], str]) -> None:
        self.count = 0
        self.content_id = "shim and image"
        self._self_test = SelfTest(Memory(), self._run, lambda _job: self.content_id, *read_boot_id)

    def _run(self, _job: Job, _delivery: Delivery) -> str:
        self.count += 1
        return "context 0\nallocate 2\n"

    def count_after(self, enforcer: Enforcer, job: Job = JOB, gpu: Gpu = GPU) -> int:
        self._self_test.prove(enforcer, job, gpu)
        return self.count


def test_what_was_proved_is_not_proved_again() -> None:
    proofs = Proofs()
    assert [proofs.count_after(Binding()) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("job", "gpu", "enforcer"),
    [
        (replace(JOB, lease=replace(LEASE, is_advisory=True)), GPU, Binding()),
        (CONTAINER, GPU, Binding()),
        (JOB, replace(GPU, driver_version="1.1"), Binding()),
        (JOB, replace(GPU, name="Two"), Binding()),
        (JOB, GPU, Binding("another")),
    ],
)
def test_another_delivery_driver_gpu_or_enforcer_is_proved_anew(job: Job, gpu: Gpu, enforcer: Enforcer) -> None:
    proofs = Proofs()
    proofs.count_after(Binding())
    assert proofs.count_after(enforcer, job, gpu) == 2


def test_the_slice_of_a_self_test_does_not_grow_since_no_agent_would_answer() -> None:
    job = replace(JOB, request=Request(50, is_estimated=True, basis="unknown"))
    assert grows(job.request, SharingMode.TIME_SLICE)
    assert not grows(throwaway(job, GPU).request, SharingMode.TIME_SLICE)


def test_another_image_or_user_is_proved_anew() -> None:
    proofs = Proofs()
    others = (replace(CONTAINER.spec, image="two"), replace(CONTAINER.spec, user="1000"))
    specs = (CONTAINER.spec, *others)
    assert [proofs.count_after(Binding(), replace(CONTAINER, spec=spec)) for spec in specs] == [1, 2, 3]


def test_another_shim_or_another_image_of_the_same_name_is_proved_anew() -> None:
    proofs = Proofs()
    proofs.count_after(Binding(), CONTAINER)
    proofs.content_id = "shim and the image after `docker build`"
    assert [proofs.count_after(Binding(), CONTAINER) for _ in range(2)] == [2, 2]


def test_the_shims_have_another_name_as_soon_as_one_byte_differs(tmp_path: Path) -> None:
    for name in (CUDA_SHIM, NVML_SHIM, PROBE, ENTER):
        (tmp_path / name).write_bytes(b"one")
    before = shims_id(tmp_path.joinpath)
    assert shims_id(tmp_path.joinpath) == before
    (tmp_path / NVML_SHIM).write_bytes(b"two")
    assert shims_id(tmp_path.joinpath) != before


def test_after_a_boot_everything_is_proved_anew(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("this boot\n")
    proofs = Proofs(boot.read_text)
    assert [proofs.count_after(Binding()) for _ in range(2)] == [1, 1]
    boot.write_text("the next boot\n")
    assert proofs.count_after(Binding()) == 2


def test_a_lease_is_read_by_the_enforcer_that_made_it() -> None:
    candidates = [
        EnforcerCandidate(Binding("strong"), lambda _: True),
        EnforcerCandidate(Binding("weak"), lambda _: True),
    ]
    selector = EnforcerSelector(
        candidates, lambda: [GPU], SelfTest(Memory(), lambda _job, _delivery: None, lambda _job: "")
    )
    for name in ("strong", "weak"):
        assert selector.use(replace(LEASE, enforcer=name))[0].gpu_uuid == name


class Keeping(Binding):
    """Knows which slices are there."""

    def __init__(self) -> None:
        super().__init__()
        self.there: set[str] = set()

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        self.there.add(job.id)
        return super().prepare(job, gpus)

    def release(self, lease: Lease) -> None:
        self.there.discard(lease.job_id)


def test_what_a_killed_self_test_left_goes_with_its_jobs_slice() -> None:
    enforcer, left = Keeping(), set[str]()

    def run(_job: Job, _delivery: Delivery) -> str:
        left.update(enforcer.there)
        return "context 0\nallocate 2\n"

    selector = EnforcerSelector(
        [EnforcerCandidate(enforcer, lambda _: True)], lambda: [GPU], SelfTest(Memory(), run, lambda _job: "")
    )
    selector.prepare(JOB, [GPU])
    enforcer.there |= left  # as if the process of the test had been killed while it ran
    assert len(enforcer.there) == 2
    selector.release(LEASE)
    assert not enforcer.there
