"""Slices of a simulated GPU, made by the shim enforcer and entered by real processes."""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.system.cuda_talker import talking
from tests.system.slice_stage import MIB, MODEL, SLICE_BYTES, Stage, install_driver, opened_stage

from pgpu.app.throwaway_jobs import run_throwaway
from pgpu.enforcement import limit_file, meter
from pgpu.enforcement.context_sizes import ContextSizes
from pgpu.enforcement.driver_library import DriverLibraries, refuse_shim
from pgpu.enforcement.enforcer_selector import EnforcerCandidate, EnforcerSelector, RejectingEnforcer
from pgpu.enforcement.self_test import SelfTest
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.errors import EnforcementError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.ledger import Ledger
from pgpu.libraries import CUDA_SHIM, SIMULATED_CUDA, library_path
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.structs import replace

_OUT_OF_MEMORY = 2
_RUNTIME = ProcessRuntime()
_CONTEXT_BYTES = parse_model(MODEL)[0].context_bytes


@pytest.fixture
def stage() -> Iterator[Stage]:
    with opened_stage() as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def _context_sizes(stage: Stage, ledger: Ledger) -> ContextSizes:
    state = stage.directory / "simgpu"
    return ContextSizes(ledger.facts, stage.source.processes, lambda: library_path(SIMULATED_CUDA), state)


def _self_test(ledger: Ledger) -> SelfTest:
    return SelfTest(ledger.facts, lambda job, delivery: run_throwaway(_RUNTIME, job, delivery), lambda _job: "")


@pytest.mark.parametrize("name", ["limit", "usage"])
def test_a_slice_of_which_a_file_is_not_there_yet_is_not_used(stage: Stage, name: str) -> None:
    job = stage.job(["true"])
    with stage.prepared(job):
        path: Path = getattr(stage.enforcer.files(job.id), name)
        path.rename(path.with_suffix(".later"))
        assert not stage.enforcer.use(_lease(job))


def test_a_slice_whose_limit_file_cannot_be_read_counts_as_full(stage: Stage) -> None:
    """As after an upgrade that no longer reads the files of an old release: one such slice must not stop every round."""
    job = stage.job(["true"])
    with stage.prepared(job) as delivery:
        limit = delivery.slice_directory / "limit"
        limit.unlink()
        limit.write_bytes(b"of another version")
        assert job.lease is not None
        assert [use.used_bytes for use in stage.enforcer.use(job.lease)] == [SLICE_BYTES]


def test_a_slice_shows_its_size_and_refuses_more(stage: Stage) -> None:
    with talking(stage, _RUNTIME) as job:
        assert job.ask("memory") == SLICE_BYTES
        assert job.ask(f"take {SLICE_BYTES}") == _OUT_OF_MEMORY
        assert job.ask(f"take {SLICE_BYTES - _CONTEXT_BYTES}") == 0
        assert job.ask(f"take {2 * MIB}") == _OUT_OF_MEMORY
        (use,) = stage.enforcer.use(_lease(job.job))
        assert (use.used_bytes, use.refusals) == (SLICE_BYTES, 2)
        assert use.attempted_bytes == _CONTEXT_BYTES + SLICE_BYTES, "the larger of the two attempts"


def test_a_larger_limit_holds_at_once_and_a_smaller_one_when_use_is_below_it(stage: Stage) -> None:
    with talking(stage, _RUNTIME) as job:
        lease = _lease(job.job)
        assert job.ask(f"take {600 * MIB}") == 0
        stage.enforcer.resize(lease, 2 * SLICE_BYTES)
        assert job.ask(f"take {SLICE_BYTES}") == 0
        stage.enforcer.resize(lease, SLICE_BYTES)
        assert stage.enforcer.use(lease)[0].used_bytes == _CONTEXT_BYTES + 600 * MIB + SLICE_BYTES
        assert job.ask(f"take {2 * MIB}") == _OUT_OF_MEMORY
        assert job.ask("free") == 0
        assert job.ask(f"take {2 * MIB}") == 0


def test_what_the_driver_holds_beyond_is_charged(stage: Stage) -> None:
    with talking(stage, _RUNTIME) as job:
        room_bytes = SLICE_BYTES - _CONTEXT_BYTES
        stage.enforcer.set_overhead(_lease(job.job), stage.gpus[0].uuid, 100 * MIB)
        assert job.ask(f"take {room_bytes}") == _OUT_OF_MEMORY
        assert job.ask(f"take {room_bytes - 100 * MIB}") == 0


def test_a_slice_is_held_as_long_as_a_process_lives_and_leaves_nothing_behind(stage: Stage) -> None:
    with talking(stage, _RUNTIME) as job:
        lease = _lease(job.job)
        assert stage.enforcer.is_held(lease)
        with pytest.raises(EnforcementError, match="still held"):
            stage.enforcer.prepare(job.job, stage.gpus)
        job.running.kill()
        assert not stage.enforcer.is_held(lease)
    assert not stage.enforcer.files(job.job.id).home.exists()
    assert not stage.enforcer.is_held(lease)
    assert stage.enforcer.use(lease) == ()
    assert str(stage.directory / "slices") not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_a_slice_that_cannot_hold_a_context_is_refused_with_a_hint_and_nothing_is_made(stage: Stage) -> None:
    job = stage.job(["true"], memory_bytes=_CONTEXT_BYTES - 1)
    with pytest.raises(RequestError, match="cannot hold one CUDA context") as caught:
        stage.enforcer.prepare(job, stage.gpus)
    assert caught.value.hint
    assert not stage.enforcer.files(job.id).home.exists()


@pytest.mark.parametrize("is_advisory", [False, True], ids=["view", "preload"])
def test_a_driver_of_the_machine_is_found_behind_the_shim(stage: Stage, *, is_advisory: bool) -> None:
    """As on real hardware: the driver lies somewhere on the machine, and nothing of it is in the slice."""
    installed = install_driver(stage)
    libraries = DriverLibraries(installed / "libcuda.so.1", installed / "libnvidia-ml.so.1")
    real = ShimEnforcer(stage.directory, lambda _: _CONTEXT_BYTES, None, lambda: libraries)
    machine = dataclasses.replace(stage, enforcer=real)
    state = (("PGPU_SIMGPU_DIR", str(stage.directory / "simgpu")),)
    with talking(machine, _RUNTIME, is_advisory=is_advisory, environment=state) as job:
        assert job.delivery.simulated_state_directory is None
        assert job.ask("memory") == SLICE_BYTES
        assert job.ask(f"take {SLICE_BYTES}") == _OUT_OF_MEMORY
        assert job.ask(f"take {100 * MIB}") == 0


def test_a_shim_is_not_taken_for_the_driver(tmp_path: Path) -> None:
    shim = library_path(CUDA_SHIM)
    copied = Path(shutil.copy(shim, tmp_path / "libcuda.so.1"))
    linked = tmp_path / "linked"
    linked.symlink_to(shim)
    for real in (copied, linked):
        with pytest.raises(EnforcementError, match="own shim"):
            refuse_shim(real, shim)
    refuse_shim(library_path(SIMULATED_CUDA), shim)


def test_an_upgrade_does_not_pull_libraries_from_under_a_job(stage: Stage) -> None:
    job = stage.job([str(Path("/.pgpu/pgpu-probe")), "allocate", str(2 * SLICE_BYTES)])
    with stage.prepared(job) as delivery:
        for copy in (stage.directory / "libraries").iterdir():
            copy.unlink()
        assert "allocate 2" in run_throwaway(_RUNTIME, job, delivery)


@pytest.mark.parametrize("spoil", ["forged", "truncated", "filled"])
def test_nothing_that_a_tenant_writes_into_its_usage_file_reaches_another_slice(stage: Stage, spoil: str) -> None:
    with talking(stage, _RUNTIME) as tenant, talking(stage, _RUNTIME) as other:
        assert other.ask(f"take {500 * MIB}") == 0
        before = stage.enforcer.use(_lease(other.job))
        _SPOILERS[spoil](tenant.delivery.usage_path)
        assert stage.enforcer.use(_lease(other.job)) == before
        assert stage.enforcer.use(_lease(tenant.job))[0].used_bytes <= SLICE_BYTES
        assert stage.enforcer.is_held(_lease(tenant.job))
        assert other.ask(f"take {SLICE_BYTES}") == _OUT_OF_MEMORY
        assert other.ask(f"take {100 * MIB}") == 0
        with talking(stage, _RUNTIME) as newcomer:
            assert newcomer.ask(f"take {100 * MIB}") == 0
    assert not stage.enforcer.files(tenant.job.id).home.exists()


def _forge(path: Path) -> None:
    """Claim the whole GPU and more, and that no slot was ever used."""
    with path.open("r+b") as file:
        file.seek(meter.USAGE_HEADER.size)
        file.write(
            meter.USAGE_GPU.pack(1 << 62, 0, 1 << 62, 1 << 62, 0, 1 << 62, 1 << 62, 1 << 62) * limit_file.MAX_GPUS
        )
        file.seek(12)
        file.write(bytes(4))


def _truncate(path: Path) -> None:
    os.truncate(path, 100)


def _fill(path: Path) -> None:
    """Write until the file system says no more, at most 64 MiB."""
    with path.open("r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        try:
            for _ in range(64):
                file.write(b"\xff" * MIB)
        except OSError:
            return
        assert os.geteuid() != 0, "root's usage files are capped"


_SPOILERS = {"forged": _forge, "truncated": _truncate, "filled": _fill}


def test_a_context_is_measured_and_not_copied_from_the_catalog(stage: Stage, ledger: Ledger) -> None:
    (gpu,) = stage.gpus
    assert _context_sizes(stage, ledger)(gpu) == _CONTEXT_BYTES
    odd_bytes = _CONTEXT_BYTES + 6 * MIB
    with opened_stage(context_bytes=odd_bytes) as other:
        configuration = other.directory / "simgpu" / "gpus.conf"
        text = configuration.read_text(encoding="utf-8")
        configuration.write_text(text.replace(str(_CONTEXT_BYTES), str(odd_bytes)), encoding="utf-8")
        assert _context_sizes(other, ledger)(other.gpus[0]) == odd_bytes


def test_a_context_is_measured_once(stage: Stage, ledger: Ledger) -> None:
    (gpu,) = stage.gpus
    assert _context_sizes(stage, ledger)(gpu) == _CONTEXT_BYTES
    (stage.directory / "simgpu" / "gpus.conf").unlink()
    assert _context_sizes(stage, ledger)(gpu) == _CONTEXT_BYTES


def test_a_context_that_cannot_be_measured_is_an_error_and_not_a_guess(stage: Stage, ledger: Ledger) -> None:
    def tells_nothing(_uuid: str) -> Sequence[None]:
        return ()

    state = stage.directory / "simgpu"
    sizes = ContextSizes(ledger.facts, tells_nothing, lambda: library_path(SIMULATED_CUDA), state)  # type: ignore[arg-type]
    with pytest.raises(EnforcementError, match="cannot be measured"):
        sizes(stage.gpus[0])


def test_no_slice_is_made_of_the_machines_memory_for_a_gpu_that_has_its_own(stage: Stage, ledger: Ledger) -> None:
    _context_sizes(stage, ledger)(stage.gpus[0])  # is measured, and kept, while NVML reports its memory
    with pytest.raises(EnforcementError, match="though it has some of its own"):
        _context_sizes(stage, ledger)(replace(stage.gpus[0], shares_host_memory=True))


@pytest.mark.parametrize("is_advisory", [False, True], ids=["view", "preload"])
def test_a_limit_that_binds_is_proved_once_for_each_way_of_delivery(
    stage: Stage, ledger: Ledger, *, is_advisory: bool
) -> None:
    runs: list[Job] = []

    def run(job: Job, delivery: Delivery) -> str:
        runs.append(job)
        return run_throwaway(_RUNTIME, job, delivery)

    selector = EnforcerSelector(
        [EnforcerCandidate(stage.enforcer, lambda _: True)],
        lambda: stage.gpus,
        SelfTest(ledger.facts, run, lambda _job: ""),
    )
    for _ in range(2):
        job = stage.job(["true"], is_advisory=is_advisory)
        selector.prepare(job, stage.gpus)
        selector.release(_lease(job))
    assert len(runs) == 1
    assert [path.name for path in (stage.directory / "slices").iterdir()] == []


class _Careless:
    """An enforcer that makes everything but the right limit: the control that the self-test must catch."""

    name = "careless"
    does_not_cover = "everything"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        delivery = self._stage.enforcer.prepare(job, gpus)
        limit_file.set_limit_bytes(delivery.slice_directory / "limit", gpus[0].uuid, 4 * SLICE_BYTES)
        return delivery

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN204 - everything else is the shim's
        return getattr(self._stage.enforcer, name)


class _Missing(_Careless):
    """Puts the driver where the shim should be."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        delivery = self._stage.enforcer.prepare(job, gpus)
        shim = delivery.slice_directory / "libpgpu.so"
        shim.unlink()
        os.link(delivery.slice_directory / "driver" / "libcuda.so.1", shim)
        return delivery


@pytest.mark.parametrize("enforcer", [_Careless, _Missing])
def test_a_limit_that_does_not_bind_is_caught_and_nothing_starts(
    stage: Stage, ledger: Ledger, enforcer: type[_Careless]
) -> None:
    selector = EnforcerSelector(
        [EnforcerCandidate(enforcer(stage), lambda _: True)], lambda: stage.gpus, _self_test(ledger)
    )
    with pytest.raises(EnforcementError, match="does not bind"):
        selector.prepare(stage.job(["true"]), stage.gpus)
    assert list((stage.directory / "slices").iterdir()) == []


def test_a_refusal_that_nobody_counted_is_not_taken_for_ours(stage: Stage, ledger: Ledger) -> None:
    """A full device refuses too; that proves nothing of the limit."""
    with talking(stage, _RUNTIME, memory_bytes=stage.gpus[0].memory_bytes) as neighbour:
        free_bytes = stage.gpus[0].memory_bytes - 2 * _CONTEXT_BYTES - 64 * MIB
        assert neighbour.ask(f"take {free_bytes}") == 0
        selector = EnforcerSelector(
            [EnforcerCandidate(_Careless(stage), lambda _: True)], lambda: stage.gpus, _self_test(ledger)
        )
        with pytest.raises(EnforcementError, match="does not bind"):
            selector.prepare(stage.job(["true"]), stage.gpus)


def test_each_gpu_has_the_strongest_enforcer_that_works_there(ledger: Ledger) -> None:
    with opened_stage(gpu_count=2) as stage:
        first, second = stage.gpus
        nothing = RejectingEnforcer("it is divided", "use another GPU")
        candidates = [
            EnforcerCandidate(stage.enforcer, lambda gpu: gpu == first),
            EnforcerCandidate(nothing, lambda _: True),
        ]
        selector = EnforcerSelector(candidates, lambda: stage.gpus, _self_test(ledger))
        assert [selector.for_gpus([gpu]).name for gpu in (first, second)] == ["shim", "none"]
        assert selector.for_gpus([first, second]).name == "none"
        assert selector.name == "shim, none"
        with pytest.raises(EnforcementError, match="it is divided") as caught:
            selector.prepare(stage.job(["true"]), stage.gpus)
        assert caught.value.hint == "use another GPU"


def test_no_enforcer_for_a_gpu_is_an_error(stage: Stage, ledger: Ledger) -> None:
    selector = EnforcerSelector(
        [EnforcerCandidate(stage.enforcer, lambda _: False)], lambda: stage.gpus, _self_test(ledger)
    )
    with pytest.raises(EnforcementError, match="no limit can be made to bind"):
        selector.prepare(stage.job(["true"]), stage.gpus)


def test_a_path_that_the_limit_file_has_no_room_for_is_refused(stage: Stage) -> None:
    job = stage.job(["true"], is_advisory=True)
    job = replace(job, lease=replace(_lease(job), job_id="x" * 250))
    with pytest.raises(EnforcementError):
        stage.enforcer.prepare(job, stage.gpus)
    assert not stage.enforcer.files("x" * 250).home.exists()


def _lease(job: Job) -> Lease:
    assert job.lease is not None
    return job.lease
