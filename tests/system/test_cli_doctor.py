"""`pgpu doctor` on this machine, and where something is broken."""

import os
import subprocess

import pytest
from tests.forked_commands import PGPU
from tests.simgpu_clients import write_gpus
from tests.system.conftest import Place
from tests.unit.test_cli import validate

from pgpu.libraries import SIMULATED_CUDA, library_path
from pgpu.units import GIB


def test_the_limit_binds_here(place: Place) -> None:
    done = place.run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trial on a simulated GPU: the limit binds" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_gpu_of_the_machine_is_tried_beside_a_simulated_one(place: Place) -> None:
    # An NVML that programs find without pgpu's help takes the path of a real one.
    gpus = place.path / "gpus"
    gpus.mkdir()
    write_gpus(gpus, "11")
    roomy = (gpus / "gpus.conf").read_text().replace(f"memory_bytes={GIB}", f"memory_bytes={8 * GIB}")
    (gpus / "gpus.conf").write_text(roomy)
    place.environment.pop("PGPU_SIMULATE")
    place.environment |= {"LD_LIBRARY_PATH": str(library_path(SIMULATED_CUDA).parent), "PGPU_SIMGPU_DIR": str(gpus)}
    found = place.run("doctor").stdout
    assert "ok    trial on a simulated GPU: the limit binds" in found
    # Its job finds no driver's libcuda.so.1 of that GPU.
    assert "FAIL  trial on a GPU: an allocation that fits returned None" in found


def test_its_document_is_as_promised(place: Place) -> None:
    document = validate("doctor", place.run("doctor", "--json").stdout)
    assert document["is_healthy"]
    assert all(check["remedy"] for check in document["checks"] if check["result"] == "failure")


def test_a_corrupt_ledger_is_a_failure_with_a_remedy(place: Place) -> None:
    place.run("ps")
    (place.path / "state" / "ledger.db").write_bytes(b"this is no database" * 1000)
    done = place.run("doctor")
    assert done.returncode == 1
    assert "FAIL  state directory" in done.stdout
    # A broken ledger does not hide that everything else works.
    assert "trial on a simulated GPU: the limit binds" in done.stdout


@pytest.mark.soak
def test_a_slice_without_a_job_is_found(place: Place) -> None:
    place.run("ps")
    [folder] = (place.path / "run").iterdir()
    (folder / "slices" / "0123456789ab").mkdir(parents=True)
    done = place.run("doctor")
    assert "slices without a job: 0123456789ab" in done.stdout


@pytest.mark.soak
def test_whether_users_of_a_server_can_have_volumes_is_tried(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root serves users")
    assert "ok    volumes of users" in place.run("doctor").stdout
    less = ["setpriv", "--bounding-set", "-sys_admin", str(PGPU), "doctor"]
    told = subprocess.run(less, env=place.environment, capture_output=True, text=True, check=False).stdout
    assert "warn  volumes of users: users of a server get none in containers" in told


@pytest.mark.parametrize("variable", ["PGPU_RUNTIME_DIR", "PGPU_STATE_DIR"])
def test_a_place_that_cannot_be_used_is_a_failure(place: Place, variable: str) -> None:
    place.environment[variable] = "/proc"
    assert place.run("doctor").returncode == 1


@pytest.mark.docker
def test_the_limit_binds_in_a_container(place: Place) -> None:
    done = place.run("doctor", "--image", "pgpu-test:latest")
    assert "trial on a simulated GPU in pgpu-test:latest: the limit binds" in done.stdout
