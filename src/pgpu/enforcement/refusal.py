"""The last rung of the ladder: GPUs whose memory no enforcer can limit. `prepare` always raises, so no job starts."""

from collections.abc import Sequence

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job, Lease


class Refusal:
    """An `Enforcer` that rejects every job with a reason."""

    def __init__(self, reason: str, hint: str) -> None:
        """Keep the texts of the error.

        Args:
            reason: Why no limit can be enforced, in one line.
            hint: How to fix it.
        """
        self._reason = reason
        self._hint = hint

    @property
    def name(self) -> str:
        return "none"

    @property
    def does_not_cover(self) -> str:
        return f"anything: {self._reason}"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        return self

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Pass: the cause may be fixed before the job starts."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Reject the job.

        Raises:
            EnforcementError: Always.
        """
        names = ", ".join(gpu.name for gpu in gpus)
        raise EnforcementError(f"no limit can be made to bind on {names}: {self._reason}", hint=self._hint)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """No effect: there is no slice."""

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """No effect: there is no slice."""

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """No effect: there is no slice."""

    def words(self, lease: Lease) -> Sequence[ComputeWord]:  # noqa: ARG002 - there is no slice
        return ()

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:  # noqa: ARG002 - there is no slice
        return ()

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """No effect: there is no slice."""

    def use(self, lease: Lease) -> Sequence[SliceUse]:  # noqa: ARG002 - there is no slice
        return ()

    def trace(self, lease: Lease) -> bytes | None:  # noqa: ARG002 - there is no slice
        return None

    def is_held(self, lease: Lease) -> bool:  # noqa: ARG002 - there is no slice
        return False

    def release(self, lease: Lease) -> None:
        """No effect: there is no slice."""
