"""The driver API by ctypes, for the snippets that tests run in processes of their own under the shim.

Every function of CUDA is called by its own symbol, or by what cuGetProcAddress hands out, and a refusal is a `Refused`
with CUDA's number. It refuses to know of pgpu: a snippet is an unmodified CUDA program.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

MIB = 1 << 20
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_VALUE = 1
NOT_PERMITTED = 800
PINNED = 1
MANAGED = 2
NOWHERE = 0
ON_DEVICE = 1
ON_HOST = 2
ON_HOST_NUMA = 3
PER_THREAD_DEFAULT_STREAM = 2
CUDA_13 = 13000


class Refused(Exception):  # noqa: N818 - it says what happened
    """A CUDA call that did not return CUDA_SUCCESS."""

    def __init__(self, symbol: str, code: int) -> None:
        super().__init__(f"{symbol}: {code}")
        self.code = code


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("max_size", c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    )


class AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProps),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("pointer", c_uint64),
    )


class Array(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class Array3d(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class AccessDesc(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


class Session:
    """One process's use of CUDA."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(path)

    def code(self, symbol: str, *arguments: object) -> int:
        """Call and return CUDA's number. A pointer-sized integer must be a c_uint64 or c_size_t."""
        return int(getattr(self.library, symbol)(*arguments))

    def call(self, symbol: str, *arguments: object) -> None:
        code = self.code(symbol, *arguments)
        if code != 0:
            raise Refused(symbol, code)

    def number(self, symbol: str, *arguments: object) -> int:
        """Call a function whose first parameter is an 8-byte result."""
        result = c_uint64()
        self.call(symbol, byref(result), *arguments)
        return result.value

    def begin(self, ordinal: int = 0) -> int:
        """Initialise and make a device's primary context current; returns the context."""
        self.call("cuInit", 0)
        return self.use(ordinal)

    def use(self, ordinal: int) -> int:
        context = self.number("cuDevicePrimaryCtxRetain", ordinal)
        self.call("cuCtxSetCurrent", c_uint64(context))
        return context

    def alloc(self, size_bytes: int) -> int:
        return self.number("cuMemAlloc_v2", c_size_t(size_bytes))

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", c_uint64(pointer))

    def alloc_async(self, size_bytes: int, stream: int = 0, suffix: str = "") -> int:
        return self.number(f"cuMemAllocAsync{suffix}", c_size_t(size_bytes), c_uint64(stream))

    def free_async(self, pointer: int, stream: int = 0) -> None:
        self.call("cuMemFreeAsync", c_uint64(pointer), c_uint64(stream))

    def memory(self) -> tuple[int, int]:
        """Free and total bytes as the driver tells them."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def held(self) -> int:
        """What the slice counts, seen from inside."""
        free, total = self.memory()
        return total - free

    def total(self, ordinal: int = 0) -> int:
        return self.number("cuDeviceTotalMem_v2", ordinal)

    def create(self, size_bytes: int, ordinal: int = 0) -> int:
        """Physical memory of virtual memory management."""
        prop = AllocationProp(type=PINNED, location=Location(ON_DEVICE, ordinal))
        return self.number("cuMemCreate", c_size_t(size_bytes), byref(prop), c_uint64(0))

    def reserve(self, size_bytes: int) -> int:
        return self.number("cuMemAddressReserve", c_size_t(size_bytes), c_size_t(0), c_uint64(0), c_uint64(0))

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self.call("cuMemMap", c_uint64(address), c_size_t(size_bytes), c_size_t(0), c_uint64(handle), c_uint64(0))

    def unmap(self, address: int, size_bytes: int) -> None:
        self.call("cuMemUnmap", c_uint64(address), c_size_t(size_bytes))

    def release(self, handle: int) -> None:
        self.call("cuMemRelease", c_uint64(handle))

    def pool(self, ordinal: int = 0, kind: int = PINNED, place: int = ON_DEVICE) -> int:
        props = PoolProps(type=kind, location=Location(place, ordinal))
        return self.number("cuMemPoolCreate", byref(props))

    def alloc_from(self, pool: int, size_bytes: int, stream: int = 0) -> int:
        return self.number("cuMemAllocFromPoolAsync", c_size_t(size_bytes), c_uint64(pool), c_uint64(stream))

    def synchronise(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", c_uint64(stream))

    def stream(self) -> int:
        return self.number("cuStreamCreate", 0)

    def found(self, name: str, version: int = CUDA_13, flags: int = 0) -> int:
        """The address that cuGetProcAddress hands out; 0 where there is none."""
        address, status = c_void_p(), c_int()
        self.call("cuGetProcAddress_v2", name.encode(), byref(address), version, c_uint64(flags), byref(status))
        return address.value or 0

    def symbol(self, name: str) -> int:
        """The address that dlsym gives."""
        return ctypes.cast(getattr(self.library, name), c_void_p).value or 0


def outcome(call: Callable[[], object]) -> int:
    """CUDA's number for a call: 0, or that of its refusal."""
    try:
        call()
    except Refused as refusal:
        return refusal.code
    return 0


def count_until_refused(call: Callable[[], object], most: int) -> tuple[int, int]:
    """How often a call succeeds, at most `most` times, and the number with which it was refused."""
    for done in range(most):
        code = outcome(call)
        if code != 0:
            return done, code
    return most, 0
