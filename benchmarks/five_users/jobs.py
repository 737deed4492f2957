"""The jobs of the five users, how each must end, and what must be refused."""

import json
from collections.abc import Mapping, Sequence

from pgpu.structs import Struct

USERS = {name: 61_201 + number for number, name in enumerate(("jihoon", "minji", "kang", "hana", "sora"))}
"""UIDs by name."""

HOSTILE = "<img src=x onerror=document.title='owned'>\x1b[2J\x1b]0;owned\x07\u202edesu"

PROGRAM = '''"""Takes GPU memory step by step, computes now and then, and ends: GIB SECONDS [EXIT_CODE]."""
import os
import signal
import sys
import threading
import time

from pgpu.workloads.cuda_driver import CudaError, Device
from pgpu.workloads.kernels import Kernels

amount_bytes, seconds, code = float(sys.argv[1]) * 2**30, float(sys.argv[2]), int((sys.argv[3:] or [0])[0])
device = Device()
kernels, scratch = Kernels(device), device.allocate(1 << 20)
end_seconds = time.monotonic() + seconds
try:
    for _ in range(4):
        device.allocate(int(amount_bytes / 4))
except CudaError as exc:
    sys.exit(str(exc))
while time.monotonic() < end_seconds:
    kernels.spin(0.05, scratch)
    device.synchronize()
    print(f"{end_seconds - time.monotonic():.0f} s left", flush=True)
    threading.Event().wait(1)
if code > 128:
    os.kill(os.getpid(), code - 128)
sys.exit(code)
'''


class Entry(Struct, frozen=True):
    """An array of a user's jobs, or one job."""

    user: str
    name: str
    count: int
    command: Sequence[str]
    ends: tuple[str, int | None] = ("exited", 0)
    """State and exit code."""

    options: Mapping[str, object] = {}
    is_late: bool = False
    """Whether it is submitted once most others have ended."""

    @property
    def names(self) -> Sequence[str]:
        """Of its jobs."""
        return [self.name] if self.count == 1 else [f"{self.name}-{number}" for number in range(self.count)]

    def toml(self) -> str:
        """Return its table in a file of jobs."""
        array = {} if self.count == 1 else {"array": f"0-{self.count - 1}"}
        keys = {"command": self.command, **array, **self.options}
        # JSON's strings and lists are TOML's as well.
        return f"[jobs.{json.dumps(self.name)}]\n" + "".join(f"{key} = {json.dumps(keys[key])}\n" for key in keys)


def _work(program: str, gib: float, seconds: float, code: int = 0) -> Sequence[str]:
    return ("python", f"{program}.py", f"{gib:g}", f"{seconds:g}", *((str(code),) if code else ()))


_SHELL = ("sh", "-c")
ENTRIES = (
    Entry("jihoon", "sweep", 44, _work("train", 1.2, 25), options={"memory": "2GiB", "compute": "5%"}),
    Entry("jihoon", "pair", 5, _work("train", 1, 20), options={"memory": "4GiB", "gpus": 2}),
    Entry("jihoon", "later", 5, _work("train", 2, 10), options={"memory": "3GiB", "priority": "low"}),
    Entry("minji", "bert", 24, _work("bert", 2.5, 20)),  # of automatic sizes
    Entry("minji", "resnet", 20, _work("resnet", 1.5, 15)),
    Entry("minji", "infer", 10, _work("infer", 0.6, 30), options={"memory": "1205MiB", "priority": -10}),
    Entry("kang", "김민준", 54, _work("학습", 3, 6), options={"memory": "4GiB"}),  # held by a quota
    Entry("hana", "fails", 20, _work("train", 1, 5, 3), ("exited", 3), {"memory": "2GiB"}),
    Entry("hana", "killed", 10, _work("train", 1, 5, 137), ("exited", 137), {"memory": "2GiB"}),
    Entry("hana", "absent", 10, ("no-such-program",), ("failed", 127), {"memory": "1GiB"}),
    Entry("hana", "too-large", 10, _work("train", 3, 5), ("exited", 1), {"memory": "2GiB"}),
    Entry("hana", "report", 4, (*_SHELL, "sleep 3"), options={"gpus": 0}),
    Entry("sora", "hostile", 34, (*_SHELL, 'printf "%s\\n" "$0"; sleep 8', HOSTILE), options={"memory": "1GiB"}),
    Entry("sora", "whole", 5, _work("llm", 18, 15), options={"memory": "20GiB"}),
    Entry("sora", "breaks", 1, (*_SHELL, "exit 4"), ("exited", 4), {"memory": "1GiB"}),
    Entry("sora", "depends", 5, ("true",), ("cancelled", None), {"memory": "1GiB", "after": "breaks"}),
    Entry("sora", "notebook", 9, _work("notebook", 4, 60), options={"memory": "6GiB"}),
    Entry("jihoon", "ablation", 6, _work("train", 4, 40), options={"memory": "6GiB", "compute": "20%"}, is_late=True),
    Entry("minji", "finetune", 6, _work("bert", 2.5, 20), is_late=True),
    Entry("kang", "이서연", 6, _work("학습", 3, 30), options={"memory": "4GiB"}, is_late=True),
    Entry("hana", "eval", 6, _work("infer", 1, 40), options={"memory": "1536MiB"}, is_late=True),
    Entry("sora", "llm", 6, _work("llm", 14, 20), options={"memory": "16GiB"}, is_late=True),
)
JOBS = sum(entry.count for entry in ENTRIES)
REFUSED = (
    ("sora", ("--memory", "30GiB", "--", "true"), "can never be granted"),
    ("kang", ("--memory", "20GiB", "--", "true"), "quota"),
    ("jihoon", ("--priority", "high", "--memory", "1GiB", "--", "true"), "priority 50"),
    ("sora", ("--name", "<img src=x>", "--memory", "1GiB", "--", "true"), "not a valid name"),
)
"""Submissions of which no job may come: user, words, and a word of the one line that explains it."""
