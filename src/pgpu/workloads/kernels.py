"""The kernels as every workload calls them, with their arguments in order.

It refuses to compute on the host: what a kernel did is read back, or not known.
"""

import ctypes
from array import array
from pathlib import Path

from pgpu.workloads.driver import Device

_PROBE_VALUE = 0x5EED
_NANOSECONDS = 1_000_000_000


class Kernels:
    """The PTX that stands beside this file, loaded on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._module = device.load((Path(__file__).parent / "kernels.ptx").read_bytes())

    def compute_here(self, scratch: int) -> bool:
        """Find out whether kernels compute on this device or only take time.

        Args:
            scratch: Address of at least 4 bytes; overwritten.
        """
        word = array("I", [0])
        self._device.write(scratch, word)
        self._module.launch("probe", 1, [(scratch, None), (_PROBE_VALUE, ctypes.c_uint)])
        self._device.read(scratch, word)
        return word[0] == _PROBE_VALUE

    def dense(self, inputs: int, weights: int, outputs: int, *, rows: int, inner: int, columns: int) -> None:
        """Multiply a `rows × inner` matrix by an `inner × columns` one, all of float32."""
        shape = [(rows, ctypes.c_int), (inner, ctypes.c_int), (columns, ctypes.c_int)]
        self._module.launch("dense", rows * columns, [(inputs, None), (weights, None), (outputs, None), *shape])

    def softmax_error(self, logits: int, labels: int, errors: int, losses: int, *, rows: int, columns: int) -> None:
        """Turn logits into errors of softmax against int32 labels, and write each row's cross-entropy."""
        addresses = [(address, None) for address in (logits, labels, errors, losses)]
        self._module.launch("softmax_error", rows, [*addresses, (rows, ctypes.c_int), (columns, ctypes.c_int)])

    def descend(
        self, inputs: int, errors: int, weights: int, *, rate: float, rows: int, inner: int, columns: int
    ) -> None:
        """Take one step of gradient descent on the weights."""
        shape = [(rows, ctypes.c_int), (inner, ctypes.c_int), (columns, ctypes.c_int)]
        addresses = [(address, None) for address in (inputs, errors, weights)]
        self._module.launch("descend", inner * columns, [*addresses, (rate, ctypes.c_float), *shape])

    def spin(self, seconds: float, elapsed: int, *, threads: int = 128) -> None:
        """Keep the GPU busy for a time.

        Args:
            seconds: How long, on the GPU's own clock.
            elapsed: Address of 8 bytes for the nanoseconds that it really took.
            threads: Width of the launch.
        """
        nanoseconds = round(seconds * _NANOSECONDS)
        self._module.launch("spin", threads, [(nanoseconds, ctypes.c_ulonglong), (elapsed, None)])
