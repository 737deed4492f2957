"""What a job in a container can and cannot do about its slice, on a simulated GPU."""

import io
import json
import os
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contract.runtime_worlds import pipes
from tests.system.conftest import Place
from tests.system.docker.conftest import docker
from tests.system.slice_stage import MIB, SLICE_BYTES, Stage, opened_stage

from pgpu.errors import CommandNotFoundError
from pgpu.model import Account, ContainerHolder, Delivery, Job
from pgpu.runtimes.docker.create_request import JOB_LABEL, container_name
from pgpu.runtimes.docker.docker_engine import DockerEngine, engine_url
from pgpu.runtimes.docker.docker_runtime import DockerRuntime
from pgpu.structs import replace

pytestmark = pytest.mark.docker

Eventually = Callable[[Callable[[], Any]], Any]

_TAKE_TWICE = f"""
from cuda.bindings import driver as d
def must(result):
    assert not int(result[0]), result
    return result[1:]
must(d.cuInit(0))
(context,) = must(d.cuDevicePrimaryCtxRetain(0))
must(d.cuCtxSetCurrent(context))
print("total", must(d.cuMemGetInfo())[1])
print("past the slice", int(d.cuMemAlloc({SLICE_BYTES})[0]))
print("inside it", int(d.cuMemAlloc({256 * MIB})[0]))
"""
_EXPECTED = f"total {SLICE_BYTES}\npast the slice 2\ninside it 0\n"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with opened_stage() as made:
        yield made


@pytest.fixture
def runtime(stage: Stage, images: str) -> DockerRuntime:
    assert images
    return DockerRuntime(stage.directory / "images")


def _python(stage: Stage, images: str, code: str, **spec: Any) -> Job:
    return stage.job(["python3", "-c", code], runtime="docker", image=f"{images}:latest", **spec)


def _shell(stage: Stage, image: str, script: str, **spec: Any) -> Job:
    return stage.job(["sh", "-c", script], runtime="docker", image=image, **spec)


def test_past_its_slice_a_job_gets_error_2_and_its_container_and_its_neighbour_run_on(
    images: str, place: Place, eventually: Eventually
) -> None:
    """P4: only the request is refused; nobody is stopped."""
    module = ("python3", "-m", "pgpu.workloads")
    image = ("--image", f"{images}:latest")
    hog, neighbour = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("hog", "neighbour"))
    words = ("run", "--detach", "--memory")
    assert (
        place.run(*words, "1GiB", "--name", neighbour, *image, "--", *module, "hog", "--seconds", "600").returncode == 0
    )
    assert place.run(*words, "2GiB", "--name", hog, *image, "--", *module, "hog", "--seconds", "600").returncode == 0
    eventually(lambda: "CUDA error 2" in place.run("logs", hog).stderr)
    eventually(lambda: "CUDA error 2" in place.run("logs", neighbour).stderr)
    for name, held_bytes in ((hog, 2 << 30), (neighbour, 1 << 30)):
        assert docker("inspect", "--format", "{{.State.Running}}", name).stdout == b"true\n"
        assert 0.9 * held_bytes <= place.job(name)["lease"]["slices"][0]["used_bytes"] <= held_bytes
    docker("kill", hog)
    assert place.run("wait", hog).stdout == "137\n"
    assert place.job(neighbour)["state"] == "running"


@pytest.mark.parametrize("user", [None, "1000", "1234:5678"])
def test_a_slice_binds_in_a_container_whoever_its_user_is(
    stage: Stage, runtime: DockerRuntime, images: str, user: str | None
) -> None:
    assert stage.output(runtime, _python(stage, images, _TAKE_TWICE, user=user)) == _EXPECTED


def test_a_slice_binds_in_a_read_only_container_without_capabilities(stage: Stage, images: str) -> None:
    hardened = _Hardened(stage.directory / "images")
    assert stage.output(hardened, _python(stage, images, _TAKE_TWICE, user="1000")) == _EXPECTED


class _Hardened(DockerRuntime):
    """Adds what an operator's engine may set by default and a job cannot ask for."""

    def _configuration(
        self, engine: DockerEngine, image: dict[str, Any], job: Job, delivery: Delivery, account: Account | None
    ) -> dict[str, Any]:
        made = super()._configuration(engine, image, job, delivery, account)
        added = {"ReadonlyRootfs": True, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"]}
        return {**made, "HostConfig": {**made["HostConfig"], **added}}


_LIFTING = [
    "echo x >/.pgpu/limit",
    "rm -f /.pgpu/limit",
    "mv /.pgpu /elsewhere && mkdir /.pgpu",
    "mount -o remount,rw /.pgpu",
    "umount /.pgpu",
    "umount /etc/ld.so.preload",
    "rm -f /etc/ld.so.preload",
    "echo >/etc/ld.so.preload",
    "rm -f /usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "echo >/.pgpu/libpgpu.so",
    "mount -t tmpfs none /.pgpu",
    "mount --bind /tmp /.pgpu",
]


def test_a_name_that_stands_for_another_image_has_another_id(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    """What was proved of an image is not taken for proved of the next one that is built under its name."""
    name = f"{images}-renamed:{uuid.uuid4().hex[:12]}"
    job = _shell(stage, name, "true")
    try:
        docker("tag", f"{images}:tiny", name)
        before = runtime.image_id(job.spec)
        assert before == runtime.image_id(_shell(stage, f"{images}:tiny", "true").spec)
        docker("tag", f"{images}:user", name)
        assert runtime.image_id(job.spec) != before
    finally:
        docker("image", "rm", name)


def test_the_container_s_root_cannot_lift_its_limit(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    tries = "; ".join(f"({attempt}) 2>/dev/null && echo 'done: {attempt}'" for attempt in _LIFTING)
    job = _shell(stage, f"{images}:latest", f"{tries}; exec python3 -c '{_TAKE_TWICE}'")
    assert stage.output(runtime, job) == _EXPECTED


@pytest.mark.parametrize("damage", [": >/.pgpu/usage", "head -c 1000000 /dev/urandom >/.pgpu/usage"])
def test_a_usage_file_that_the_job_damaged_never_lifts_the_limit(
    stage: Stage, runtime: DockerRuntime, images: str, damage: str
) -> None:
    job = _shell(stage, f"{images}:latest", f"{damage}; exec python3 -c '{_TAKE_TWICE}'")
    assert "past the slice 0" not in stage.output(runtime, job)


def test_the_image_s_own_preloads_are_kept_after_ours(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    script = (
        "cat /etc/ld.so.preload; while read line; do case $line in *preload.so) echo mapped;; esac; done </proc/$$/maps"
    )
    lines = stage.output(runtime, _shell(stage, f"{images}:preload", script)).splitlines()
    assert lines[:3] == ["/.pgpu/libpgpu.so", "/.pgpu/libpgpu-ml.so", "/usr/lib/libimage-preload.so"]
    assert "mapped" in lines[3:]


def test_an_image_with_a_driver_of_its_own_meets_the_shim_behind_its_links(
    stage: Stage, runtime: DockerRuntime, images: str
) -> None:
    image = f"pgpu-test-links:{uuid.uuid4().hex[:8]}"
    links = {
        "usr/lib/x86_64-linux-gnu/libcuda.so.1": "libcuda.so.999.1",
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/usr/lib/nowhere.so",
        "usr/local/cuda/compat/libcuda.so.1": "libcuda.so.999.2",
    }
    files = ("usr/lib/x86_64-linux-gnu/libcuda.so.999.1", "usr/local/cuda/compat/libcuda.so.999.2")
    _derive(f"{images}:latest", image, links, files)
    try:
        code = _TAKE_TWICE + "\n".join(
            f"import ctypes; print('{path}', ctypes.CDLL('/{path}').cuInit(0))" for path in (*files, *list(links)[::2])
        )
        job = stage.job(["python3", "-c", code], runtime="docker", image=image)
        lines = stage.output(runtime, job).splitlines()
        assert lines[:3] == _EXPECTED.splitlines()
        assert [line.split()[1] for line in lines[3:]] == ["0", "0", "0", "0"]
    finally:
        docker("rmi", "--force", image)


def _derive(base: str, image: str, links: Mapping[str, str], files: tuple[str, ...]) -> None:
    """Make an image that adds symbolic links and files to another."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in files:
            member = tarfile.TarInfo(path)
            member.size = len(b"not a library")
            archive.addfile(member, io.BytesIO(b"not a library"))
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    container = docker("create", "--network", "none", base, "true").stdout.decode().strip()
    docker("cp", "-", f"{container}:/", stdin=content.getvalue())
    docker("commit", container, image)
    docker("rm", container)


def test_in_a_musl_image_programs_run_and_there_is_no_cuda(images: str, place: Place) -> None:
    done = place.run("run", "--memory", "1GiB", "--image", f"{images}:musl")
    assert (done.returncode, done.stdout) == (0, "alive\nno CUDA\n"), done.stderr


def test_a_container_without_a_gpu_has_nothing_of_pgpu_in_it(images: str, place: Place) -> None:
    script = "ls -d /.pgpu; cat /etc/ld.so.preload; echo $NVIDIA_VISIBLE_DEVICES; exit 4"
    done = place.run("run", "--gpus", "0", "--image", f"{images}:tiny", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (4, "void\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (("--image", "no-such-image:ever"), "no-such-image:ever is not on this machine", "docker pull"),
        (("--image", "pgpu-test:tiny", "--volume", "/tmp:/.pgpu"), "where pgpu puts the slice", ""),
        (("--image", "pgpu-test:tiny", "--volume", "/tmp:/data:sideways"), "unknown option 'sideways'", "ro, rw"),
        (("--image", "pgpu-test:tiny", "--volume", "/tmp:/.pgpu/limit"), "where pgpu puts the slice", ""),
        (("--image", "pgpu-test:tiny", "--volume", "/tmp:/usr/lib64/libcuda.so.1"), "the driver's library", "leave it"),
        (("--image", "pgpu-test:tiny", "--volume", "no/name:/data"), "no valid name", "./data"),
        (("--image", "pgpu-test:tiny", "--user", "nobody-here"), "knows no user 'nobody-here'", "root, user"),
        (("--image", "pgpu-test:tiny", "--user", "user:nobody-here"), "knows no group 'nobody-here'", "root, user"),
        (("--image", "pgpu-test:tiny", "--name", "bad name"), "name", ""),
        (("--image", "Not An Image"), "Not An Image", ""),
    ],
)
def test_bad_words_get_one_line_and_change_nothing(
    images: str, place: Place, words: tuple[str, ...], says: str, hint: str
) -> None:
    assert images
    done = place.run("run", "--memory", "1GiB", *words, "--", "true")
    assert done.returncode == 125
    assert says in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert place.json("ps", "--all")["jobs"] == []


def test_without_an_engine_a_container_is_refused_with_a_hint(place: Place) -> None:
    done = place.run(
        "run", "--memory", "1GiB", "--image", "pgpu-test:tiny", "--", "true", DOCKER_HOST="unix:///no/engine"
    )
    assert done.returncode == 125
    assert "does not answer: No such file or directory" in done.stderr
    assert "DOCKER_HOST" in done.stderr
    done = place.run(
        "run", "--memory", "1GiB", "--image", "pgpu-test:tiny", "--", "true", DOCKER_HOST="tcp://127.0.0.1:1"
    )
    assert done.returncode == 125
    assert "not a socket of this machine" in done.stderr


def test_what_a_crash_left_between_create_and_start_is_removed(
    stage: Stage, runtime: DockerRuntime, images: str
) -> None:
    job = _shell(stage, f"{images}:tiny", "echo ran")
    left = docker("create", "--name", container_name(job), "--label", f"{JOB_LABEL}={job.id}", f"{images}:tiny").stdout
    assert stage.output(runtime, job) == "ran\n"
    assert docker("inspect", left.decode().strip(), check=False).returncode != 0


def test_a_container_that_never_ran_is_not_adopted_and_goes(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    job = _shell(stage, f"{images}:tiny", "true")
    left = docker("create", "--label", f"{JOB_LABEL}={job.id}", f"{images}:tiny", "true").stdout.decode().strip()
    streams = pipes()
    adopted = runtime.adopt(_held(job, left), streams.job_side)
    assert adopted is None
    assert docker("inspect", left, check=False).returncode != 0
    streams.close()
    streams.close_job_side()


def test_a_container_that_ended_unseen_is_adopted_with_its_exit_code(
    stage: Stage, runtime: DockerRuntime, images: str, eventually: Eventually
) -> None:
    job = _shell(stage, f"{images}:tiny", "true")
    label = ("--label", f"{JOB_LABEL}={job.id}")
    ended = (
        docker("create", *label, "--network", "none", f"{images}:tiny", "sh", "-c", "exit 9").stdout.decode().strip()
    )
    docker("start", "--attach", ended, check=False)
    streams = pipes()
    adopted = runtime.adopt(_held(job, ended), streams.job_side)
    assert adopted is not None
    eventually(lambda: not adopted.is_alive())
    assert adopted.exit_code() == 9
    adopted.close()
    assert docker("inspect", ended, check=False).returncode != 0
    streams.close()
    streams.close_job_side()


def _held(job: Job, container_id: str) -> Job:
    return replace(job, holder=ContainerHolder(container_id, engine_url()))


def test_a_container_that_cannot_start_leaves_nothing(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    job = stage.job(["/no/such"], runtime="docker", image=f"{images}:tiny")
    with pytest.raises(CommandNotFoundError, match="/no/such: not found"):
        stage.output(runtime, job)
    engine = DockerEngine(engine_url())
    assert engine.containers_with_label(f"{JOB_LABEL}={job.id}") == []


def test_a_job_s_container_adds_no_privilege(stage: Stage, runtime: DockerRuntime, images: str) -> None:
    streams, job = pipes(), _shell(stage, f"{images}:tiny", "cat", wants_stdin=True)
    with stage.prepared(job) as delivery:
        running = runtime.start(job, delivery, streams.job_side, lambda _: None)
        streams.close_job_side()
        try:
            made = json.loads(docker("inspect", container_name(job)).stdout)[0]["HostConfig"]
        finally:
            running.kill()
            running.close()
            streams.close()
    plain = docker("create", "--network", "none", f"{images}:tiny").stdout.decode().strip()
    theirs = json.loads(docker("inspect", plain).stdout)[0]["HostConfig"]
    docker("rm", plain)
    for word in ("Privileged", "CapAdd", "SecurityOpt", "Devices", "PidMode", "IpcMode", "UsernsMode", "CgroupParent"):
        assert (made[word] or []) == (theirs[word] or []), word
    assert os.fspath(Path("/")) not in {mount["Source"] for mount in made["Mounts"]}
