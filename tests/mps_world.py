"""A control daemon of the simulated MPS, and programs that are its clients or would be.

A program answers one Python expression a line, with `cu`, a Session, in reach; what CUDA refuses comes back as its number.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.native_clients import library, preloading
from tests.simgpu_clients import write_gpus
from tests.waiting import until

from pgpu.enforcement.mps import MpsControl, ServerStatus
from pgpu.enforcement.mps.control import all_clients
from pgpu.libraries import PROBE, SIMULATED_CUDA, SIMULATED_MPS_CONTROL

MIB = 1 << 20
CONTEXT_BYTES = 64 * MIB
"""As `write_gpus` says."""

MEMORY_BYTES = 8192 * MIB
"""Room for as many contexts as there may be."""

MPS_ENABLED, MULTIPROCESSORS = 133, 16
RPC_FAILURE, SERVER_NOT_READY, MAX_CLIENTS_REACHED, CLIENT_TERMINATED = 806, 807, 808, 810
ILLEGAL_ADDRESS = 700

_ROOT = Path(__file__).parent.parent
_PROGRAM = """
import json, sys
from ctypes import byref, c_char_p, c_int, c_uint64
from tests.cuda_session import *
cu = Session()
PTX = b".version 6.0\\n.target sm_50\\n.address_size 64\\n// pgpu.cost k fixed_ns=%d\\n.visible .entry k() { ret; }\\n"
def attribute(number):
    value = c_int()
    cu.call("cuDeviceGetAttribute", byref(value), number, 0)
    return value.value
def launch(seconds=0):
    module = cu.number("cuModuleLoadData", c_char_p(PTX % (1000 + seconds * 1000000000)))
    kernel = cu.number("cuModuleGetFunction", c_uint64(module), c_char_p(b"k"))
    cu.call("cuLaunchKernel", c_uint64(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None)
def context():
    return bool(cu.number("cuCtxCreate_v2", 0, 0))
for line in sys.stdin:
    try:
        print(json.dumps(eval(line)), flush=True)
    except Refused as refused:
        print(json.dumps({"refused": refused.code}), flush=True)
"""


@dataclass
class Program:
    """One CUDA program."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, expression: str) -> Any:
        """Have it evaluate an expression."""
        self.say(expression)
        return self.hear()

    def say(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def refusal(self, expression: str) -> int:
        """Have it call what is refused, and return CUDA's number; 0 where it is not refused."""
        answer = self.ask(expression)
        return int(answer["refused"]) if isinstance(answer, dict) else 0

    def begin(self) -> "Program":
        """Make its context."""
        assert self.refusal("cu.begin()") == 0
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class MpsWorld:
    """One daemon's directories, on a tmpfs, and everything started here."""

    directory: Path
    uuid: str
    stack: ExitStack
    control: MpsControl = field(init=False)

    def __post_init__(self) -> None:
        pipe, log = self.directory / "pipe", self.directory / "log"
        for made in (pipe, log):
            made.mkdir()
        self.control = MpsControl(library(SIMULATED_MPS_CONTROL), pipe, log, self.uuid, self.directory)

    @property
    def server(self) -> int:
        """The one server there is."""
        servers = self.control.servers()
        assert servers is not None
        assert len(servers) == 1
        return servers[0]

    @property
    def daemon_pid(self) -> int:
        return int((self.control.pipe_directory / "nvidia-cuda-mps-control.pid").read_text())

    @property
    def clients(self) -> list[int]:
        return list(all_clients(self.control))

    def status(self) -> ServerStatus | None:
        return self.control.status(self.server)

    def environment(self, added: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PGPU_SIM"))}
        kept |= {
            "LD_LIBRARY_PATH": str(library(SIMULATED_CUDA).parent),
            "PGPU_SIMGPU_DIR": str(self.directory),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.control.pipe_directory),
        }
        return kept | preloading() | dict(added or {})

    def program(self, added: Mapping[str, str] | None = None) -> Program:
        """Start a program; it has not used CUDA yet."""
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            env=self.environment(added),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._kept(Program(process))

    def client(self, added: Mapping[str, str] | None = None) -> Program:
        """Start a program that has a context."""
        return self.program(added).begin()

    def holder(self, user: int | None = None) -> subprocess.Popen[str]:
        """Start the smallest program that has a context; it says `ready` or what was refused.

        Its files are copies that every user may read.
        """
        for path in (library(PROBE), library(SIMULATED_CUDA)):
            if not (self.directory / path.name).exists():
                shutil.copy(path, self.directory)
        process = subprocess.Popen(
            [self.directory / PROBE, "hold", self.directory / "libcuda.so.1"],
            cwd="/",
            user=user,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._kept(Program(process))
        return process

    def _kept(self, program: Program) -> Program:
        self.stack.callback(_end, program)
        return program

    def close(self) -> None:
        self.control.quit(0)
        for path in self.control.pipe_directory.glob("*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


def _end(program: Program) -> None:
    program.kill()
    for stream in (program.process.stdin, program.process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


@contextmanager
def mps_world(*, compute_major: int = 8, is_started: bool = True) -> Iterator[MpsWorld]:
    """A GPU of 8 GiB and ten multiprocessors with a daemon, and another GPU without."""
    with tempfile.TemporaryDirectory(prefix="pgpu-test-", dir="/dev/shm") as directory, ExitStack() as stack:
        place = Path(directory)
        place.chmod(0o755)
        gpus = write_gpus(place, "11", "22", compute_major=compute_major) / "gpus.conf"
        gpus.write_text(gpus.read_text().replace(f"={1024 * MIB}", f"={MEMORY_BYTES}"))
        world = MpsWorld(place, "GPU-11111111-2222-3333-4444-555555555555", stack)
        stack.callback(world.close)
        if is_started:
            world.control.start()
        yield world


def until_gone(pid: int) -> None:
    """Wait until a process is dead; one that nobody reaps counts."""
    until(lambda: is_dead(pid))


def is_dead(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text[text.rindex(")") + 2] in "ZX"
