"""An unmodified CUDA program: it tells what it sees, takes all memory that it is given, and keeps it until it is asked to go.

    python3 -c TEXT MOST_BYTES KEEP_SECONDS     0: for ever

It runs in a container's image, as text in a pod's command, so it refuses to import anything but Python's own library.
What it found is one line of JSON:

    total_bytes, free_bytes   of the first GPU, before anything was allocated
    granted_bytes             what cuMemAlloc gave in all, at most MOST_BYTES
    refusal                   CUDA's number for what was refused; 0 where MOST_BYTES was reached
    gpus                      how many there are
    claim                     what of pgpu's is in the environment
"""

import ctypes
import json
import os
import signal
import sys

MIB = 1 << 20


def ask(function: str, *arguments: object) -> int:
    """Call one function of the driver and return its result."""
    return int(getattr(cuda, function)(*arguments))


def need(function: str, *arguments: object) -> None:
    """Call one function of the driver that must succeed."""
    result = ask(function, *arguments)
    if result:
        sys.exit(f"{function}: {result}")


def take(most_bytes: int) -> tuple[int, int]:
    """Allocate in ever smaller pieces; return the bytes granted and the number of the last refusal."""
    granted = refusal = 0
    for piece in (1024 * MIB, 64 * MIB, MIB):
        while granted + piece <= most_bytes:
            refusal = ask("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(piece))
            if refusal:
                break
            granted += piece
    return granted, refusal if granted < most_bytes else 0


def leave(*_signal: object) -> None:
    """End at once; what was allocated is given back with the process."""
    os._exit(0)


signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGALRM, leave)
cuda = ctypes.CDLL("libcuda.so.1")
count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
need("cuInit", 0)
need("cuDeviceGetCount", ctypes.byref(count))
need("cuDeviceGet", ctypes.byref(device), 0)
need("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
need("cuCtxSetCurrent", context)
need("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
granted_bytes, refusal_number = take(int(sys.argv[1]))
report = {
    "gpus": count.value,
    "total_bytes": total.value,
    "free_bytes": free.value,
    "granted_bytes": granted_bytes,
    "refusal": refusal_number,
    "claim": {name: value for name, value in os.environ.items() if name.startswith("PGPU_")},
}
sys.stdout.write(json.dumps(report) + "\n")
sys.stdout.flush()
signal.alarm(int(sys.argv[2]))
while True:
    signal.pause()
