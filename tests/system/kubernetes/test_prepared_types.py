"""Many threads that meet a kind of objects for the first time at once."""

import subprocess
import sys

MEET_AT_ONCE = """
import gc, sys, threading
import msgspec
from lightkube.models.meta_v1 import Status
from lightkube.resources.core_v1 import Pod
from lightkube.resources.resource_v1 import ResourceSlice
from pgpu.kubernetes.api.api_connection import prepare_type

gc.set_threshold(5)
sys.setswitchinterval(1e-6)
together = threading.Barrier(6)

def meet():
    together.wait()
    for kind in (Pod, ResourceSlice, Status):
        if sys.argv[1] == "prepared":
            prepare_type(kind)
        try:
            msgspec.convert({"metadata": {"name": "x"}}, kind)
        except msgspec.ValidationError:
            pass

threads = [threading.Thread(target=meet) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_meet_a_kind_at_once_live_on() -> None:
    for _ in range(3):
        met = subprocess.run([sys.executable, "-c", MEET_AT_ONCE, "prepared"], check=False)

        assert met.returncode == 0
