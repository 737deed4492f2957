"""What a program is made of: buffers that the GPU fills itself, launches, and the host's word on what must come out.

Where kernels compute, a small problem of odd sizes is solved before the real one and compared with the host's answer,
number by number. It refuses to go on with a GPU that computes something else.
"""

from __future__ import annotations

import argparse
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

from pgpu.workloads.cuda_driver import Module
from pgpu.workloads.kernels import Filling

Buffers: TypeAlias = "Sequence[array[Any]]"
"""Host copies of a problem's buffers, in its order."""


@dataclass(frozen=True, slots=True)
class Problem(ABC):
    """One size of one program's problem; a frozen dataclass of sizes."""

    name: ClassVar[str]
    kernels: ClassVar[str]
    """The PTX file beside this one that holds its kernels, without its ending."""

    result: ClassVar[int] = -1
    """Which buffer holds the answer after an iteration."""

    tolerance: ClassVar[float] = 0.0
    """By how much the answer may differ from the host's, as a share of it; 0 where whole numbers are added."""

    @classmethod
    @abstractmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Name the sizes that a user may choose."""

    @classmethod
    @abstractmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Self:
        """Read the sizes from the command line."""

    @classmethod
    @abstractmethod
    def small(cls) -> Self:
        """Return a size that the host solves at once and that is no multiple of a block."""

    @property
    @abstractmethod
    def fillings(self) -> Sequence[Filling]:
        """What each buffer holds before the first iteration."""

    @abstractmethod
    def launch(self, module: Module, addresses: Sequence[int]) -> None:
        """Launch one iteration.

        Args:
            module: The kernels.
            addresses: Of the buffers, in their order.
        """

    @abstractmethod
    def solve(self, buffers: Buffers) -> array[Any]:
        """Do what one iteration does, on the host.

        Args:
            buffers: As they were filled.

        Returns:
            What must stand in the buffer `result` afterwards.
        """

    def filled(self) -> Buffers:
        """Return what the GPU writes into the buffers before the first iteration."""
        return [filling.values(seed) for seed, filling in enumerate(self.fillings)]

    def difference(self, found: array[Any], buffers: Buffers) -> str | None:
        """Compare an answer with the host's; None where they agree, else the first place where they do not."""
        expected = self.solve(buffers)
        for place, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
            if not math.isclose(ours, theirs, rel_tol=self.tolerance, abs_tol=self.tolerance):
                return f"{self.name}: at {place} the GPU has {theirs} and the host {ours}"
        return None
