"""Enforcers with one special behaviour each."""

from collections.abc import Sequence
from pathlib import Path

from tests.fakes.machine import FileEnforcer

from pgpu.enforcement import SliceUse
from pgpu.enforcement.enforcer_selector import RejectingEnforcer
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job, Lease


class Binding(RejectingEnforcer):
    """An enforcer with a fixed slice and an adjustable name."""

    def __init__(self, name: str = "binding") -> None:
        super().__init__("", "")
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        return Delivery(Path("/slice"), Path("/usage"), ("GPU-1",))

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        return [SliceUse(self._name, 0, 0, 1)]


class HalfWay(FileEnforcer):
    """Changes a slice on its first GPU and fails on the next one, unless the new size is the former one."""

    def __init__(self, root: Path, had_bytes: int) -> None:
        super().__init__(root)
        self._had_bytes = had_bytes

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        super().resize(lease, memory_bytes)
        if memory_bytes != self._had_bytes:
            raise EnforcementError("the limit of the second GPU cannot be set")


class Stuck(FileEnforcer):
    """Changes no slice."""

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        raise EnforcementError("the limit cannot be written")


class Failing(FileEnforcer):
    """Finds a slice held at first, then fails once in an unforeseen way, then finds it free."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._looks = 0

    def is_held(self, lease: Lease) -> bool:
        self._looks += 1
        if self._looks == 2:
            raise OSError("too many open files")
        return self._looks == 1
