"""One process that uses CUDA as it is told, for tests that give the same calls to several drivers.

`python -m tests.cuda_actor` is a server: it forks an actor for each socket that it receives, which costs a tenth of a new
Python. An actor answers each request `[name, arguments]` with `[CUDA's number, value, bytes in use]`. With `--bare` it
acts as if its whole GPU were a slice: what a slice charges and a GPU of that size would not (managed memory, memory of
other processes) is allocated a second time, as ordinary memory, and idle memory of pools is released for lack of room.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any

from tests.cuda_session import (
    MANAGED,
    ON_DEVICE,
    ON_HOST,
    OUT_OF_MEMORY,
    PINNED,
    AllocNode,
    Array,
    Location,
    PoolProps,
    Refused,
    Session,
)

_RELEASE_THRESHOLD = 4
_UNICAST = 1
_IMAGE = """.version 7.0
.target sm_50
.address_size 64
.visible .global {attribute} .align 4 .b8 table[{size}];
.visible .entry first() {{ ret; }}"""


def _image(size: int, attribute: str = "") -> bytes:
    return _IMAGE.format(size=size, attribute=attribute).encode()


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class EndpointProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("device", ctypes.c_int),
        ("size", c_uint64),
        ("handle_types", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class MulticastProp(ctypes.Structure):
    _fields_ = (("devices", ctypes.c_uint), ("size", c_size_t), ("handle_types", c_uint64), ("flags", c_uint64))


class Actor:
    """What one process has, by the test's own numbers; each public method is a request."""

    def __init__(self, *, is_bare: bool) -> None:
        self._is_bare = is_bare
        self._things: dict[int, Any] = {}
        self._pools: list[int] = []
        self._streams: list[int] = []
        self._cu = Session()
        self._context = self._cu.begin()

    def perform(self, name: str, arguments: list[Any]) -> tuple[int, object, int]:
        code, value = self._attempt(getattr(self, name), arguments)
        if code == OUT_OF_MEMORY and self._is_bare:
            self.release_idle()
            code, value = self._attempt(getattr(self, name), arguments)
        return code, value, self._cu.held()

    @staticmethod
    def _attempt(call: Callable[..., object], arguments: list[Any]) -> tuple[int, object]:
        try:
            return 0, call(*arguments)
        except Refused as refused:
            return refused.code, None

    def release_idle(self) -> None:
        self._cu.call("cuCtxSynchronize")
        for pool in [*self._pools, self._cu.number("cuDeviceGetDefaultMemPool", 0)]:
            self._cu.call("cuMemPoolTrimTo", c_uint64(pool), c_size_t(0))
        self._cu.call("cuDeviceGraphMemTrim", 0)

    def _with_ballast(self, size: int, make: Callable[[], int]) -> tuple[int, int | None]:
        ballast = self._cu.alloc(size) if self._is_bare else None
        try:
            return make(), ballast
        except Refused:
            if ballast is not None:
                self._cu.free(ballast)
            raise

    def alloc(self, key: int, size: int) -> None:
        self._things[key] = self._cu.alloc(size)

    def free(self, key: int) -> None:
        self._cu.free(self._things[key])

    def free_async(self, key: int) -> None:
        self._cu.free_async(self._things[key])

    def managed(self, key: int, size: int) -> None:
        self._things[key] = self._with_ballast(size, lambda: self._cu.number("cuMemAllocManaged", c_size_t(size), 1))

    def free_managed(self, key: int) -> None:
        for pointer in self._things[key]:
            if pointer is not None:
                self._cu.free(pointer)

    def array(self, key: int, size: int) -> None:
        wanted = Array(width=size // 4096, height=1024, format=0x20, channels=1)
        self._things[key] = self._cu.number("cuArrayCreate_v2", byref(wanted))

    def free_array(self, key: int) -> None:
        self._cu.call("cuArrayDestroy", c_uint64(self._things[key]))

    def pool(self, key: int, kind: str) -> None:
        """`pinned`, `managed` (preferred on the host) or `host` (pinned there)."""
        made = [] if kind == "host" or (kind == "managed" and not self._is_bare) else [self._cu.pool()]
        if kind != "pinned":
            made.append(self._cu.pool(kind=MANAGED if kind == "managed" else PINNED, place=ON_HOST))
        self._things[key] = made
        self._pools += made

    def pool_alloc(self, key: int, pool: int, size: int) -> None:
        self._things[key] = [self._cu.alloc_from(each, size) for each in self._things[pool]]

    def default_alloc(self, key: int, size: int) -> None:
        self._things[key] = [self._cu.alloc_async(size)]

    def pool_free(self, key: int, in_order: bool) -> None:
        for pointer in self._things[key]:
            self._cu.free_async(pointer) if in_order else self._cu.free(pointer)

    def pool_keep(self, key: int, size: int) -> None:
        for pool in self._things[key]:
            self._cu.call("cuMemPoolSetAttribute", c_uint64(pool), _RELEASE_THRESHOLD, byref(c_uint64(size)))

    def pool_trim(self, key: int, size: int) -> None:
        for pool in self._things[key]:
            self._cu.call("cuMemPoolTrimTo", c_uint64(pool), c_size_t(size))

    def pool_destroy(self, key: int) -> None:
        for pool in self._things[key]:
            self._cu.call("cuMemPoolDestroy", c_uint64(pool))
            self._pools.remove(pool)

    def synchronise(self) -> None:
        self._cu.call("cuCtxSynchronize")

    def create(self, key: int, size: int) -> None:
        self._things[key] = self._cu.create(size)

    def map(self, key: int, handle: int, size: int) -> None:
        self._things[key] = (self._cu.reserve(size), size)
        self._cu.map(self._things[key][0], size, self._things[handle])

    def unmap(self, key: int) -> None:
        self._cu.unmap(*self._things[key])

    def retain(self, key: int, mapping: int) -> None:
        self._things[key] = self._cu.number("cuMemRetainAllocationHandle", c_void_p(self._things[mapping][0]))

    def release(self, key: int) -> None:
        self._cu.release(self._things[key])

    def bind(self, key: int, handle: int, size: int) -> None:
        """Bind physical memory to a logical endpoint of its own."""
        prop = EndpointProp(type=_UNICAST, device=0, size=size)
        endpoint = ctypes.c_uint()
        self._cu.call("cuLogicalEndpointIdReserve", byref(endpoint), 1)
        self._cu.call("cuLogicalEndpointCreate", endpoint, byref(prop))
        self._cu.call("cuLogicalEndpointQuery", endpoint, 1, byref(ctypes.c_int()))
        memory, nothing = c_uint64(self._things[handle]), c_uint64(0)
        self._cu.call("cuLogicalEndpointBindMem", endpoint, 0, nothing, memory, nothing, c_uint64(size), nothing)
        self._things[key] = (endpoint.value, size)

    def unbind(self, key: int) -> None:
        endpoint, size = self._things[key]
        self._cu.call("cuLogicalEndpointUnbind", endpoint, 0, c_uint64(0), c_uint64(size))

    def end_endpoint(self, key: int) -> None:
        self._cu.call("cuLogicalEndpointDestroy", self._things[key][0])

    def join(self, key: int, handle: int, size: int) -> None:
        """Bind physical memory to a multicast object of its own."""
        prop = MulticastProp(devices=1, size=size)
        team = c_uint64(self._cu.number("cuMulticastCreate", byref(prop)))
        self._cu.call("cuMulticastAddDevice", team, 0)
        nothing, memory = c_size_t(0), c_uint64(self._things[handle])
        self._cu.call("cuMulticastBindMem", team, nothing, memory, nothing, c_size_t(size), c_uint64(0))
        self._things[key] = team.value

    def graph(self, key: int, size: int, frees: bool) -> None:
        graph = c_uint64(self._cu.number("cuGraphCreate", 0))
        wanted = AllocNode(pool=PoolProps(type=PINNED, location=Location(ON_DEVICE, 0)), bytes=size)
        node = c_uint64(self._cu.number("cuGraphAddMemAllocNode", graph, None, c_size_t(0), byref(wanted)))
        if frees:
            self._cu.number("cuGraphAddMemFreeNode", graph, byref(node), c_size_t(1), c_uint64(wanted.pointer))
        executable = self._cu.number("cuGraphInstantiateWithFlags", graph, c_uint64(0))
        self._things[key] = (executable, wanted.pointer)

    def launch(self, key: int, stream: int) -> None:
        while len(self._streams) <= stream:
            self._streams.append(self._cu.stream())
        self._cu.call("cuGraphLaunch", c_uint64(self._things[key][0]), c_uint64(self._streams[stream]))

    def upload(self, key: int) -> None:
        self._cu.call("cuGraphUpload", c_uint64(self._things[key][0]), c_uint64(0))

    def end_graph(self, key: int) -> None:
        self._cu.call("cuGraphExecDestroy", c_uint64(self._things[key][0]))

    def free_left(self, key: int) -> None:
        """Free what a graph's launch allocated and left."""
        self._cu.free(self._things[key][1])

    def graph_trim(self) -> None:
        self._cu.call("cuDeviceGraphMemTrim", 0)

    def module(self, key: int, size: int) -> None:
        self._things[key] = self._cu.number("cuModuleLoadData", _image(size))

    def unload_module(self, key: int) -> None:
        self._cu.call("cuModuleUnload", c_uint64(self._things[key]))

    def managed_module(self, key: int, size: int) -> None:
        module = c_uint64(self._cu.number("cuModuleLoadData", _image(size, ".attribute(.managed)")))
        try:
            found = self._with_ballast(size, lambda: self._cu.number("cuModuleGetGlobal_v2", None, module, b"table"))
        except Refused:
            self._cu.call("cuModuleUnload", module)
            raise
        self._things[key] = (module.value, found[1])

    def unload_managed_module(self, key: int) -> None:
        module, ballast = self._things[key]
        self._cu.call("cuModuleUnload", c_uint64(module))
        if ballast is not None:
            self._cu.free(ballast)

    def library(self, key: int, size: int) -> None:
        image = _image(size)
        self._things[key] = self._cu.number("cuLibraryLoadData", image, None, None, 0, None, None, 0)

    def use_library(self, key: int, way: int) -> None:
        library = c_uint64(self._things[key])
        if way == 0:
            self._cu.number("cuLibraryGetGlobal", None, library, b"table")
        elif way == 1:
            self._cu.number("cuLibraryGetModule", library)
        else:
            kernel = c_uint64(self._cu.number("cuLibraryGetKernel", library, b"first"))
            self._cu.number("cuKernelGetFunction", kernel)

    def unload_library(self, key: int) -> None:
        self._cu.call("cuLibraryUnload", c_uint64(self._things[key]))

    def context(self, key: int) -> None:
        self._things[key] = self._cu.number("cuCtxCreate_v2", 0, 0)
        self._cu.call("cuCtxSetCurrent", c_uint64(self._context))

    def alloc_in(self, context: int, size: int) -> None:
        self._cu.call("cuCtxSetCurrent", c_uint64(self._things[context]))
        try:
            self._cu.alloc(size)
        finally:
            self._cu.call("cuCtxSetCurrent", c_uint64(self._context))

    def end_context(self, key: int) -> None:
        self._cu.call("cuCtxDestroy_v2", c_uint64(self._things[key]))

    def ipc_get(self, key: int) -> str:
        handle = IpcHandle()
        self._cu.call("cuIpcGetMemHandle", byref(handle), c_uint64(self._things[key]))
        return bytes(handle).hex()

    def ipc_open(self, key: int, handle: str, size: int) -> None:
        shared = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        self._things[key] = self._with_ballast(size, lambda: self._cu.number("cuIpcOpenMemHandle_v2", shared, 1))

    def ipc_close(self, key: int) -> None:
        pointer, ballast = self._things[key]
        self._cu.call("cuIpcCloseMemHandle", c_uint64(pointer))
        if ballast is not None:
            self._cu.free(ballast)

    def fork(self, size: int) -> int:
        """CUDA's number for an allocation of a forked child."""
        child = os.fork()
        if child == 0:
            os._exit(self._cu.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(size)))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def linger(self, connection: int) -> int:
        """Fork a child that does nothing, and that keeps what this process has while it lives; return its PID."""
        child = os.fork()
        if child == 0:
            os.close(connection)
            signal.pause()
        return child


def _act(connection: socket.socket, *, is_bare: bool) -> None:
    requests, answers = connection.makefile("r"), connection.makefile("w")

    def answer(*what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        actor = Actor(is_bare=is_bare)
    except Refused as refused:
        answer(refused.code, os.getpid(), 0)
        return
    answer(0, os.getpid(), actor.perform("synchronise", [])[2])
    for line in requests:
        name, arguments = json.loads(line)
        if name == "exec":
            connection.set_inheritable(True)
            words = ["--bare"] if is_bare else []
            os.execv(
                sys.executable, [sys.executable, "-m", "tests.cuda_actor", f"--go-on={connection.fileno()}", *words]
            )
        if name == "linger":
            arguments = [connection.fileno()]
        answer(*actor.perform(name, arguments))


def main() -> None:
    """Serve, or go on as an actor that has executed itself."""
    is_bare = "--bare" in sys.argv
    going_on = next((word for word in sys.argv if word.startswith("--go-on=")), None)
    if going_on is not None:
        _act(socket.socket(fileno=int(going_on.partition("=")[2])), is_bare=is_bare)
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=sys.stdin.fileno()) as server:
        while True:
            word, descriptors, *_ = socket.recv_fds(server, 1, 1)
            if not word:
                return
            if os.fork() == 0:
                break
            os.close(descriptors[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _act(socket.socket(fileno=descriptors[0]), is_bare=is_bare)
    os._exit(0)


if __name__ == "__main__":
    main()
