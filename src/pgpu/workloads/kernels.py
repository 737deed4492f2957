"""The kernels that all workloads use, with their arguments in order; nothing is computed on the host in their place."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pgpu.workloads.cuda_driver import Device

_PROBE_VALUE = 0x5EED
_NANOSECONDS = 1_000_000_000
_WORD_BYTES = 4
_WORD_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Filling:
    """Pseudorandom whole numbers that the GPU writes and the host can compute as well."""

    typecode: Literal["f", "i"]
    """Of `array`: float32 or int32."""

    count: int
    several: int = 1
    """Number of different values; 1 makes all equal."""

    least: int = 0

    @property
    def amount_bytes(self) -> int:
        return self.count * _WORD_BYTES

    def values(self, seed: int) -> array[Any]:
        """Return what the kernel `fill` writes."""

        # Arithmetic modulo 2**32, operation by operation the same as in kernels.cu.
        def value(index: int) -> int:
            mixed = (index + seed) * 2654435761 & _WORD_MASK
            mixed = (mixed ^ mixed >> 15) * 2246822519 & _WORD_MASK
            return (mixed ^ mixed >> 13) % self.several + self.least

        return array(self.typecode, map(value, range(self.count)))


class Kernels:
    """The PTX beside this file, loaded on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._module = device.load((Path(__file__).parent / "kernels.ptx").read_bytes())

    def compute_here(self, scratch: int) -> bool:
        """Test whether kernels compute on this device or only take time.

        Args:
            scratch: Address of at least 4 bytes; overwritten.
        """
        # A simulated GPU accepts the launch and leaves the 0 in place.
        word = array("I", [0])
        self._device.write(scratch, word)
        self._module.launch("probe", 1, [(scratch, None), (_PROBE_VALUE, ctypes.c_uint)])
        self._device.read(scratch, word)
        return word[0] == _PROBE_VALUE

    def fill(self, address: int, filling: Filling, *, seed: int) -> None:
        """Write the numbers of `Filling.values`."""
        numbers = [
            (filling.count, ctypes.c_ulonglong),
            (seed, ctypes.c_uint),
            (filling.several, ctypes.c_uint),
            (filling.least, ctypes.c_int),
            (int(filling.typecode == "f"), ctypes.c_int),
        ]
        self._module.launch("fill", filling.count, [(address, None), *numbers])

    def dense(self, inputs: int, weights: int, outputs: int, *, rows: int, inner: int, columns: int) -> None:
        """Multiply a `rows × inner` matrix by an `inner × columns` one, all of float32."""
        shape = [(rows, ctypes.c_int), (inner, ctypes.c_int), (columns, ctypes.c_int)]
        self._module.launch("dense", rows * columns, [(inputs, None), (weights, None), (outputs, None), *shape])

    def softmax_error(self, logits: int, labels: int, errors: int, losses: int, *, rows: int, columns: int) -> None:
        """Replace logits by the errors of softmax against int32 labels, and write each row's cross-entropy."""
        addresses = [(address, None) for address in (logits, labels, errors, losses)]
        self._module.launch("softmax_error", rows, [*addresses, (rows, ctypes.c_int), (columns, ctypes.c_int)])

    def descend(
        self, inputs: int, errors: int, weights: int, *, rate: float, rows: int, inner: int, columns: int
    ) -> None:
        """Apply one step of gradient descent to the weights."""
        shape = [(rows, ctypes.c_int), (inner, ctypes.c_int), (columns, ctypes.c_int)]
        addresses = [(address, None) for address in (inputs, errors, weights)]
        self._module.launch("descend", inner * columns, [*addresses, (rate, ctypes.c_float), *shape])

    def spin(self, seconds: float, elapsed: int, *, threads: int = 128) -> None:
        """Keep the GPU busy for some time.

        Args:
            seconds: How long, on the GPU's own clock.
            elapsed: Address of 8 bytes for the measured nanoseconds.
            threads: Width of the launch.
        """
        nanoseconds = round(seconds * _NANOSECONDS)
        self._module.launch("spin", threads, [(nanoseconds, ctypes.c_ulonglong), (elapsed, None)])
