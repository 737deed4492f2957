"""A CUDA program that does what it is told on standard input. It stands alone: it runs inside a slice."""

import ctypes
import sys


class Program:
    """The driver's own answers are its answers."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._pointers: list[ctypes.c_uint64] = []

    def begin(self) -> int:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        return int(
            self._driver.cuInit(0)
            or self._driver.cuDeviceGet(ctypes.byref(device), 0)
            or self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or self._driver.cuCtxSetCurrent(context)
        )

    def take(self, bytes_text: str) -> int:
        pointer = ctypes.c_uint64()
        result = int(self._driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(bytes_text))))
        if result == 0:
            self._pointers.append(pointer)
        return result

    def free(self) -> int:
        return int(self._driver.cuMemFree_v2(self._pointers.pop()))

    def memory(self) -> int:
        free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total_bytes))
        return total_bytes.value


def _obey() -> None:
    program = Program()
    for number, line in enumerate(sys.stdin, start=1):
        verb, *words = line.split()
        print(f"answer {number} {getattr(program, verb)(*words)};", flush=True)  # noqa: T201 - its way to answer


if __name__ == "__main__":
    _obey()
