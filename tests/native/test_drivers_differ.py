"""The same random calls to a sliced driver and to a bare one whose GPU is as large as the slice.

The slice is a GPU of its size: each call has the same result up to the limit, the same memory is in use after it, and the
device never holds more. `PGPU_FUZZ_EXAMPLES` sets how many sequences are tried, then with seeds of their own (`make fuzz`).
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.cuda_session import INVALID_VALUE, OUT_OF_MEMORY
from tests.slice_world import GIB, MIB, SliceWorld, a_slice

_ROOT = Path(__file__).parents[2]
_LIMIT_BYTES = GIB
_CONTEXT_BYTES = 64 * MIB
_UNIT_BYTES = 16 * MIB
_EXAMPLES = int(os.environ.get("PGPU_FUZZ_EXAMPLES", "60"))
_STEPS = 50
_PROCESSES = 2


class Driver:
    """A server of actors before one driver."""

    def __init__(self, environment: dict[str, str], words: list[str], stack: ExitStack) -> None:
        self._near, far = socket.socketpair()
        stack.enter_context(self._near)
        command = [sys.executable, "-m", "tests.cuda_actor", *words]
        with far:
            self._server = subprocess.Popen(command, env=environment, cwd=_ROOT, stdin=far.fileno())
        stack.callback(self._server.wait)
        stack.callback(self._near.shutdown, socket.SHUT_RDWR)

    def start(self) -> "Process":
        near, far = socket.socketpair()
        with far:
            socket.send_fds(self._near, [b"+"], [far.fileno()])
        return Process(near)


class Process:
    """An actor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("r")
        self.code, self.pid, self.held_bytes = self._read()

    def _read(self) -> Any:
        line = self._answers.readline()
        assert line, "the process died"
        return json.loads(line)

    def ask(self, name: str, *arguments: object) -> tuple[int, Any, int]:
        self._connection.sendall(json.dumps([name, arguments]).encode() + b"\n")
        code, value, held_bytes = self._read()
        return code, value, held_bytes

    def end(self) -> None:
        self._answers.close()
        self._connection.close()
        kill(self.pid)


def kill(pid: int) -> None:
    """Kill a process; once its descriptor reports the end, the kernel has dropped all of its memory and locks."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


@dataclass
class Drivers:
    """The two drivers, and the slice of the first."""

    world: SliceWorld
    sliced: Driver
    bare: Driver


def _of_size(text: str, memory_bytes: int) -> str:
    text = re.sub(r"(?m)^memory_bytes=.*$", f"memory_bytes={memory_bytes}", text)
    return re.sub(r"(?m)^context_bytes=.*$", f"context_bytes={_CONTEXT_BYTES}", text)


@contextmanager
def _drivers() -> Iterator[Drivers]:
    with ExitStack() as stack:
        world = stack.enter_context(a_slice(_LIMIT_BYTES, model="H100"))
        world.write_limit(context_bytes=_CONTEXT_BYTES)
        world.environment["PGPU_SIMGPU_BACKING"] = "none"
        conf = world.simulated / "gpus.conf"
        text = conf.read_text()
        conf.write_text(_of_size(text, 8 * _LIMIT_BYTES))
        alone = world.directory / "bare"
        alone.mkdir()
        (alone / "gpus.conf").write_text(_of_size(text, _LIMIT_BYTES))
        environment = world.environment_for(is_shimmed=False) | {"PGPU_SIMGPU_DIR": str(alone)}
        sliced = Driver(world.environment_for(is_shimmed=True), [], stack)
        yield Drivers(world, sliced, Driver(environment, ["--bare"], stack))


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    with _drivers() as found:
        yield found


@dataclass
class Pair:
    """One process before each driver, and what the two have: by number, its kind and size."""

    sliced: Process
    bare: Process
    things: dict[int, tuple[str, int]] = field(default_factory=dict)
    lingering: list[tuple[int, int]] = field(default_factory=list)
    is_exact: bool = True
    """It never had managed or shared memory, of which the driver holds less than is charged."""

    def of_kind(self, *kinds: str) -> list[int]:
        return [key for key, (kind, _) in self.things.items() if kind in kinds]


_SIZES = st.integers(1, 24).map(lambda units: units * _UNIT_BYTES)
_WHO = st.integers(0, _PROCESSES - 1)
_PICK = st.integers(0, 1 << 20)

_TAKES = ["alloc", "managed", "array", "create", "module", "managed_module", "library"]
_FREES = {
    "free": ("alloc", "shared"),
    "free_async": ("alloc", "shared"),
    "free_managed": ("managed",),
    "free_array": ("array",),
    "unload_module": ("module",),
    "unload_managed_module": ("managed_module",),
    "unload_library": ("library", "refused library"),
}


class Calls(RuleBasedStateMachine):
    """What a job may call; `who` is one of its processes."""

    drivers: Drivers

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[int, Pair] = {}
        self._orphans: list[tuple[int, int]] = []
        self._next_key = 0
        self._has_executed = False

    @initialize()
    def begin(self) -> None:
        pair = self._of(0)
        assert pair is not None
        assert pair.sliced.held_bytes == pair.bare.held_bytes == _CONTEXT_BYTES

    def teardown(self) -> None:
        for pair in self._pairs.values():
            self._end(pair)
        for both in self._orphans:
            for pid in both:
                kill(pid)

    def _end(self, pair: Pair) -> None:
        pair.sliced.end()
        pair.bare.end()
        self._orphans += pair.lingering

    def _of(self, who: int) -> Pair | None:
        """The process `who`, which is started if there is none; None where its context has no room."""
        if who not in self._pairs:
            pair = Pair(self.drivers.sliced.start(), self.drivers.bare.start())
            assert pair.sliced.code == pair.bare.code
            if pair.sliced.code != 0:
                self._end(pair)
                return None
            self._pairs[who] = pair
        return self._pairs[who]

    def _both(self, pair: Pair, name: str, *arguments: object) -> tuple[Any, Any] | None:
        """Call both drivers, and compare; None where they refuse."""
        code, value, held_bytes = pair.sliced.ask(name, *arguments)
        bare_code, bare_value, bare_held_bytes = pair.bare.ask(name, *arguments)
        # A graph that cannot be launched for another reason may be refused for its memory first.
        is_same = code == bare_code or (name == "launch" and (code, bare_code) == (OUT_OF_MEMORY, INVALID_VALUE))
        assert is_same, (name, arguments, code, bare_code, held_bytes, bare_held_bytes)
        # Fewer: for lack of room for a launch, a slice has some idle memory of pools released first; then both release all.
        if held_bytes < bare_held_bytes:
            held_bytes, bare_held_bytes = pair.sliced.ask("release_idle")[2], pair.bare.ask("release_idle")[2]
        assert held_bytes <= bare_held_bytes, (name, arguments, code, held_bytes, bare_held_bytes)
        return (value, bare_value) if code == 0 else None

    def _make(self, who: int, kind: str, size: int, name: str, *arguments: object) -> None:
        pair, self._next_key = self._of(who), self._next_key + 1
        if pair is not None and "managed" in (*arguments, name, kind.removesuffix("_module")):
            pair.is_exact = False
        if pair is not None and self._both(pair, name, self._next_key, *arguments) is not None:
            pair.things[self._next_key] = (kind, size)

    def _pick(self, who: int, pick: int, *kinds: str) -> tuple[Pair, int] | None:
        pair = self._pairs.get(who)
        found = [] if pair is None else pair.of_kind(*kinds)
        return (pair, found[pick % len(found)]) if pair is not None and found else None

    def _call(self, who: int, pick: int, kinds: tuple[str, ...], name: str, *arguments: object, ends: bool) -> None:
        picked = self._pick(who, pick, *kinds)
        if picked is None:
            return
        pair, key = picked
        if self._both(pair, name, key, *arguments) is not None and ends:
            del pair.things[key]

    @invariant()
    def the_device_holds_no_more_than_the_slice_counts(self) -> None:
        used_bytes = self.drivers.world.use().used_bytes
        assert self.drivers.world.device_bytes() <= used_bytes <= _LIMIT_BYTES

    @rule(who=_WHO, size=_SIZES, kind=st.sampled_from(_TAKES))
    def take(self, who: int, size: int, kind: str) -> None:
        self._make(who, kind, size, kind, size)

    @rule(who=_WHO, size=_SIZES)
    def take_from_the_default_pool(self, who: int, size: int) -> None:
        self._make(who, "pooled", size, "default_alloc", size)

    @rule(who=_WHO, pick=_PICK, name=st.sampled_from([*_FREES]))
    def give_back(self, who: int, pick: int, name: str) -> None:
        self._call(who, pick, _FREES[name], name, ends=True)

    @rule(who=_WHO, kind=st.sampled_from(["pinned", "managed", "host"]))
    def make_pool(self, who: int, kind: str) -> None:
        self._make(who, "pool", 0, "pool", kind)

    @rule(who=_WHO, pick=_PICK, size=_SIZES)
    def take_from_a_pool(self, who: int, pick: int, size: int) -> None:
        if (picked := self._pick(who, pick, "pool")) is not None:
            self._make(who, "pooled", size, "pool_alloc", picked[1], size)

    @rule(who=_WHO, pick=_PICK, in_order=st.booleans())
    def give_back_to_its_pool(self, who: int, pick: int, in_order: bool) -> None:
        self._call(who, pick, ("pooled",), "pool_free", in_order, ends=True)

    @rule(
        who=_WHO,
        pick=_PICK,
        size=st.sampled_from([0, 64 * MIB, 1 << 40]),
        name=st.sampled_from(["pool_keep", "pool_trim"]),
    )
    def change_pool(self, who: int, pick: int, size: int, name: str) -> None:
        self._call(who, pick, ("pool",), name, size, ends=False)

    @rule(who=_WHO, pick=_PICK)
    def destroy_pool(self, who: int, pick: int) -> None:
        self._call(who, pick, ("pool",), "pool_destroy", ends=True)

    @rule(who=_WHO, name=st.sampled_from(["synchronise", "graph_trim"]))
    def settle(self, who: int, name: str) -> None:
        if (pair := self._of(who)) is not None:
            self._both(pair, name)

    @rule(who=_WHO, pick=_PICK, kind=st.sampled_from(["map", "bind", "join"]))
    def hold_physical_memory(self, who: int, pick: int, kind: str) -> None:
        if (picked := self._pick(who, pick, "create")) is not None:
            size = picked[0].things[picked[1]][1]
            self._make(who, kind, size, kind, picked[1], size)

    @rule(who=_WHO, pick=_PICK)
    def retain(self, who: int, pick: int) -> None:
        if (picked := self._pick(who, pick, "map")) is not None:
            self._make(who, "create", picked[0].things[picked[1]][1], "retain", picked[1])

    @rule(who=_WHO, pick=_PICK, name=st.sampled_from(["release", "unmap", "end_endpoint", "leave"]))
    def drop_physical_memory(self, who: int, pick: int, name: str) -> None:
        kind = {"release": "create", "unmap": "map", "end_endpoint": "bind", "leave": "join"}[name]
        self._call(who, pick, (kind,), "release" if name == "leave" else name, ends=True)

    @rule(who=_WHO, pick=_PICK)
    def unbind(self, who: int, pick: int) -> None:
        self._call(who, pick, ("bind",), "unbind", ends=False)

    @rule(who=_WHO, size=_SIZES, frees=st.booleans())
    def make_graph(self, who: int, size: int, frees: bool) -> None:
        self._make(who, "graph", size, "graph", size, frees)

    @rule(who=_WHO, pick=_PICK, stream=st.integers(0, 2))
    def launch(self, who: int, pick: int, stream: int) -> None:
        self._call(who, pick, ("graph",), "launch", stream, ends=False)

    @rule(who=_WHO, pick=_PICK, name=st.sampled_from(["upload", "free_left"]))
    def use_graph(self, who: int, pick: int, name: str) -> None:
        self._call(who, pick, ("graph",), name, ends=False)

    @rule(who=_WHO, pick=_PICK)
    def end_graph(self, who: int, pick: int) -> None:
        self._call(who, pick, ("graph",), "end_graph", ends=True)

    @rule(who=_WHO, pick=_PICK, way=st.integers(0, 2))
    def use_library(self, who: int, pick: int, way: int) -> None:
        """A library that has no room is unloaded by the shim, and loaded no more.

        Beside managed memory it may take what that leaves of its charge.
        """
        if (picked := self._pick(who, pick, "library")) is None or not picked[0].is_exact:
            return
        pair, key = picked
        if self._both(pair, "use_library", key, way) is None:
            pair.things[key] = ("refused library", 0)

    @rule(who=_WHO)
    def make_context(self, who: int) -> None:
        self._make(who, "context", _CONTEXT_BYTES, "context")

    @rule(who=_WHO, pick=_PICK, size=_SIZES)
    def take_in_a_context(self, who: int, pick: int, size: int) -> None:
        self._call(who, pick, ("context",), "alloc_in", size, ends=False)

    @rule(who=_WHO, pick=_PICK)
    def end_context(self, who: int, pick: int) -> None:
        self._call(who, pick, ("context",), "end_context", ends=True)

    @rule(who=_WHO, pick=_PICK)
    def share(self, who: int, pick: int) -> None:
        picked, other = self._pick(who, pick, "alloc"), self._of(1 - who)
        if picked is None or other is None:
            return
        size = picked[0].things[picked[1]][1]
        picked[0].things[picked[1]] = ("shared", size)
        picked[0].is_exact = other.is_exact = False
        handles = self._both(picked[0], "ipc_get", picked[1])
        assert handles is not None
        self._next_key += 1
        code, _, held_bytes = other.sliced.ask("ipc_open", self._next_key, handles[0], size)
        bare_code, _, bare_held_bytes = other.bare.ask("ipc_open", self._next_key, handles[1], size)
        assert (code, held_bytes) == (bare_code, bare_held_bytes)
        if code == 0:
            other.things[self._next_key] = ("ipc", size)

    @rule(who=_WHO, pick=_PICK)
    def close_shared(self, who: int, pick: int) -> None:
        self._call(who, pick, ("ipc",), "ipc_close", ends=True)

    @rule(who=_WHO, size=_SIZES)
    def fork(self, who: int, size: int) -> None:
        if (pair := self._of(who)) is not None:
            codes = self._both(pair, "fork", size)
            assert codes is not None
            assert codes[0] == codes[1]

    @rule(who=_WHO)
    def fork_a_child_that_stays(self, who: int) -> None:
        if (pair := self._of(who)) is not None and not pair.lingering:
            pids = self._both(pair, "linger")
            assert pids is not None
            pair.lingering.append(pids)

    @rule()
    def end_orphans(self) -> None:
        for both in self._orphans:
            for pid in both:
                kill(pid)
        self._orphans.clear()

    @rule(who=_WHO)
    def kill(self, who: int) -> None:
        if who in self._pairs:
            self._end(self._pairs.pop(who))

    @precondition(lambda self: not self._has_executed)
    @rule(who=_WHO)
    def execute(self, who: int) -> None:
        """The process becomes a new program, which has what the driver keeps: nothing."""
        pair = self._pairs.get(who)
        if pair is None or pair.lingering:
            return
        self._has_executed = True
        code, _, held_bytes = pair.sliced.ask("exec")
        assert (code, held_bytes) == (pair.bare.ask("exec")[0], held_bytes)
        pair.things.clear()
        if code != 0:
            self._end(self._pairs.pop(who))


def test_a_slice_is_a_gpu_of_its_size_for_every_sequence_of_calls(drivers: Drivers) -> None:
    Calls.drivers = drivers
    chosen = settings(
        max_examples=_EXAMPLES,
        stateful_step_count=_STEPS,
        derandomize="PGPU_FUZZ_EXAMPLES" not in os.environ,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Calls, settings=chosen)
