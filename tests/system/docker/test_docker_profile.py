"""`pgpu profile --image`: a container's log comes out of it as a process's does."""

import json

import pytest
from tests.system.conftest import Place

from pgpu.units import MIB

pytestmark = pytest.mark.docker

KERNEL_NS = 20_000_000
CODE = f"""
from cuda.bindings import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
cuda.cuMemAlloc({64 * MIB})
ptx = b"// pgpu.cost slow fixed_ns={KERNEL_NS}\\n.version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry slow() {{ ret; }}\\n"
slow = cuda.cuModuleGetFunction(cuda.cuModuleLoadData(ptx)[1], b"slow")[1]
for _ in range(3):
    cuda.cuLaunchKernel(slow, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)
cuda.cuCtxSynchronize()
print("done")
"""


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_a_container_s_kernels_are_measured_whoever_it_runs_as(shared_place: Place, images: str, user: str) -> None:
    words = ("--memory", "1GiB", "--image", f"{images}:latest", "--user", user)
    done = shared_place.run("profile", "--json", *words, "--", "python3", "-c", CODE)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stderr
    told = json.loads(done.stdout)["profile"]
    [kernel] = told["kernels"]
    assert (kernel["name"], kernel["launches"]) == ("slow", 3)
    assert kernel["total_ns"] == pytest.approx(3 * KERNEL_NS, rel=0.05)
    assert told["gpus"][0]["peak_bytes_by_kind"]["linear"] == 64 * MIB
    assert told["signature"].startswith(f"{images}:latest@")
