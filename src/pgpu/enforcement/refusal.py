"""The bottom of the ladder: GPUs whose memory nothing here can limit. Nothing starts there.

It refuses every job and says why; what has never been made needs no reading and no removal.
"""

from collections.abc import Sequence

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job, Lease


class Refusal:
    """Stands where an enforcer would."""

    def __init__(self, reason: str, hint: str) -> None:
        """Remember what to say.

        Args:
            reason: Why no limit can be made to bind, in one line.
            hint: What to do about it.
        """
        self._reason = reason
        self._hint = hint

    @property
    def name(self) -> str:
        """`none`."""
        return "none"

    @property
    def does_not_cover(self) -> str:
        """Why there is none."""
        return f"anything: {self._reason}"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        """Return itself."""
        return self

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Let it through: what forbids jobs here may be gone when they start."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Refuse.

        Raises:
            EnforcementError: Always.
        """
        names = ", ".join(gpu.name for gpu in gpus)
        raise EnforcementError(f"no limit can be made to bind on {names}: {self._reason}", hint=self._hint)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Do nothing: there is no slice."""

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Do nothing: there is no slice."""

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Do nothing: there is no slice."""

    def words(self, lease: Lease) -> Sequence[ComputeWord]:  # noqa: ARG002 - there is no slice
        """Nothing is said."""
        return ()

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:  # noqa: ARG002 - there is no slice
        """Nobody tells anything."""
        return ()

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Do nothing: there is no slice."""

    def use(self, lease: Lease) -> Sequence[SliceUse]:  # noqa: ARG002 - there is no slice
        """Nothing is used."""
        return ()

    def trace(self, lease: Lease) -> bytes | None:  # noqa: ARG002 - there is no slice
        """Nothing was."""
        return None

    def is_held(self, lease: Lease) -> bool:  # noqa: ARG002 - there is no slice
        """Nobody holds it."""
        return False

    def release(self, lease: Lease) -> None:
        """Do nothing: there is no slice."""
