"""`pgpu run --image` beside plain `docker run`: the same words give the same bytes and the same exit code."""

import fcntl
import hashlib
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.system.docker.conftest import docker
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.docker

_SLICE = ("--memory", "512MiB")
_SHELL = ("sh", "-c")


@dataclass(frozen=True)
class Case:
    """Words for both, and which parts of what they print must be the same."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    stdin: bytes | None = None
    tag: str = "tiny"
    compares_stderr: bool = True


_CASES = [
    Case("success", ("true",)),
    Case("exit code", (*_SHELL, "exit 7")),
    Case("largest exit code", (*_SHELL, "exit 255")),
    Case("both streams", (*_SHELL, "echo out; echo err >&2; exit 3")),
    Case("megabytes of output", (*_SHELL, "i=0; while [ $i -lt 40 ]; do cat /usr/bin/ls; i=$((i+1)); done")),
    Case("output without a last newline", (*_SHELL, "printf %s abc")),
    Case("unknown command", ("no-such-command",), compares_stderr=False),
    Case("unknown path", ("/no/such/command",), compares_stderr=False),
    Case("a file that cannot be executed", ("/etc/passwd",), compares_stderr=False),
    Case("a directory as command", ("/etc",), compares_stderr=False),
    Case("a child killed by a signal", (*_SHELL, "sh -c 'kill -9 $$'; echo $?")),
    Case("no stdin", ("cat",), stdin=b"never read"),
    Case("stdin", ("cat",), ("-i",), stdin=b"line\n" * 100_000),
    Case("stdin that is not read", ("true",), ("-i",), stdin=b"x" * 100_000),
    Case("end of stdin", (*_SHELL, "cat >/dev/null; echo ended"), ("-i",), stdin=b""),
    Case("environment", (*_SHELL, 'echo "$A|$B|$HOME|$HOSTNAME" | head -c 8'), ("-e", "A=1 2", "-e", "B=")),
    Case("working directory", ("pwd",), ("-w", "/usr/lib")),
    Case("working directory that is made", ("pwd",), ("-w", "/made/for/this")),
    Case("user by number", ("id",), ("-u", "1234")),
    Case("user by name", ("id",), ("-u", "user")),
    Case("user and group", ("id",), ("-u", "1000:7")),
    Case("unknown user", ("id",), ("-u", "nobody-of-that-name"), compares_stderr=False),
    Case("the image's user", ("id",), tag="user"),
    Case("root over the image's user", ("id",), ("-u", "0"), tag="user"),
    Case("the image's own command", (), tag="musl"),
    Case("no privilege", (*_SHELL, "mount -t tmpfs none /tmp 2>/dev/null; echo $?")),
    Case("a terminal", (*_SHELL, "test -t 1 && test -t 2 && echo yes; echo no >&2"), ("-t",)),
]


def _run_docker(case: Case, image: str) -> subprocess.CompletedProcess[bytes]:
    words = ("run", "--rm", "--network", "none", *case.options, f"{image}:{case.tag}", *case.command)
    return docker(*words, stdin=case.stdin, check=False)


def _run_pgpu(case: Case, image: str, place: Place) -> subprocess.CompletedProcess[bytes]:
    tail = ("--", *case.command) if case.command else ()
    words = ("run", *_SLICE, *case.options, "--image", f"{image}:{case.tag}", *tail)
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if case.stdin is None else {"input": case.stdin}
    return subprocess.run(
        [PGPU, *words], env=place.environment, capture_output=True, timeout=DEADLINE_SECONDS, check=False, **given
    )


def _of_the_job(stderr: bytes) -> list[bytes]:
    return [line for line in stderr.splitlines() if not line.startswith((b"pgpu: ", b"WARNING: "))]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in _CASES])
def test_the_same_words_give_the_same_bytes_and_exit_code(case: Case, images: str, shared_place: Place) -> None:
    theirs, ours = _run_docker(case, images), _run_pgpu(case, images, shared_place)
    assert ours.returncode == theirs.returncode, ours.stderr
    assert _digest(ours.stdout) == _digest(theirs.stdout)
    if case.compares_stderr:
        assert _of_the_job(ours.stderr) == _of_the_job(theirs.stderr)
    assert b"Traceback" not in ours.stderr


def _digest(data: bytes) -> tuple[int, str, bytes]:
    return len(data), hashlib.sha256(data).hexdigest(), data[:200]


@pytest.mark.parametrize("options", ["", ":ro", ":rw"])
def test_a_volume_is_seen_and_written_as_docker_does(
    options: str, images: str, shared_place: Place, tmp_path: Path
) -> None:
    seen = []
    for who in ("docker", "pgpu"):
        folder = tmp_path / who
        folder.mkdir()
        (folder / "given").write_text("from the host\n")
        case = Case(
            "volume",
            (*_SHELL, "cat /data/given; echo x >/data/made 2>/dev/null; echo $?"),
            ("-v", f"{folder}:/data{options}"),
        )
        done = _run_docker(case, images) if who == "docker" else _run_pgpu(case, images, shared_place)
        seen.append((done.returncode, done.stdout, sorted(path.name for path in folder.iterdir())))
    assert seen[0] == seen[1]
    assert seen[1][1].startswith(b"from the host\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_command_line_reaches_the_job_as_with_docker(
    number: signal.Signals, images: str, shared_place: Place
) -> None:
    script = f"trap 'echo caught; exit 42' {number.value}; echo ready; while :; do sleep 0.1; done"
    for words, environment in _both(images, shared_place, (*_SHELL, script)):
        with subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.stdout.read() == b"caught\n", words[0]
            assert process.wait(DEADLINE_SECONDS) == 42, words[0]


def _both(
    image: str, place: Place, command: tuple[str, ...], options: tuple[str, ...] = ()
) -> list[tuple[list[str], dict[str, str] | None]]:
    return [
        (["docker", "run", "--rm", "--network", "none", *options, f"{image}:tiny", *command], None),
        ([str(PGPU), "run", *_SLICE, *options, "--image", f"{image}:tiny", "--", *command], place.environment),
    ]


def test_ctrl_c_and_window_size_on_a_terminal_reach_the_job_as_with_docker(images: str, shared_place: Place) -> None:
    sized = 'i=0; until [ "$(stty size)" = "33 77" ] || [ $i = 100 ]; do i=$((i+1)); sleep 0.1; done'
    script = f"trap 'echo caught; stty size; exit 42' INT; {sized}; echo ready; while :; do sleep 0.1; done"
    seen = [
        _on_a_terminal(words, environment, b"ready", b"\x03")
        for words, environment in _both(images, shared_place, (*_SHELL, script), ("-i", "-t"))
    ]
    assert seen[0] == seen[1]
    assert seen[1][0] == 42
    assert b"33 77" in seen[1][1]


def _on_a_terminal(
    words: list[str], environment: dict[str, str] | None, wanted: bytes, then: bytes
) -> tuple[int, bytes]:
    """Run on a terminal of 33 × 77, type something once the job wrote what was wanted; the job's lines after that."""
    master, slave = pty.openpty()

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    with subprocess.Popen(
        words, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        before = _read_until(master, wanted)
        os.write(master, then)
        after = _read_until(master, b"\0never")
        code = process.wait(DEADLINE_SECONDS)
    os.close(master)
    del before
    return code, after


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    read = b""
    while wanted not in read:
        assert select.select([descriptor], [], [], DEADLINE_SECONDS)[0], read
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # nobody has the other side open any more
            break
        if not chunk:
            break
        read += chunk
    return read.rpartition(wanted)[2] if wanted in read else read


def test_a_detached_job_is_a_container_of_the_asked_name_until_it_ended(
    images: str, shared_place: Place, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    words = ("run", *_SLICE, "--detach", "--name", name, "--image", f"{images}:tiny", "--", *_SHELL)
    done = shared_place.run(*words, "echo begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 9")
    assert done.returncode == 0, done.stderr
    state = eventually(lambda: docker("inspect", "--format", "{{.State.Status}}", name, check=False).stdout[:-1])
    assert state in {b"created", b"running"}
    eventually(lambda: b"begun" in docker("logs", name).stdout)
    docker("exec", name, "touch", "/tmp/go")
    assert shared_place.run("wait", name).stdout == "9\n"
    assert shared_place.run("logs", name).stdout == "begun\n"
    eventually(lambda: docker("inspect", name, check=False).returncode != 0)


def test_a_kept_container_is_there_after_its_job(images: str, shared_place: Place) -> None:
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    done = shared_place.run("run", *_SLICE, "--keep", "--name", name, "--image", f"{images}:tiny", "--", "false")
    assert done.returncode == 1
    assert docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout == b"1\n"
    refused = shared_place.run("run", *_SLICE, "--name", name, "--image", f"{images}:tiny", "--", "true")
    assert refused.returncode == 125
    assert f"docker rm {name}" in refused.stderr
    docker("rm", name)


def test_a_stopped_job_has_its_grace_and_then_no_mercy(images: str, shared_place: Place) -> None:
    script = "trap 'echo not yet' TERM; echo ready; while :; do sleep 0.1; done"
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    words = ("run", *_SLICE, "--name", name, "--image", f"{images}:tiny", "--", *_SHELL, script)
    process = shared_place.start(*words)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert shared_place.run("stop", "--time", "1", name).returncode == 0
    assert process.stdout.read() == "not yet\n"
    assert process.wait(DEADLINE_SECONDS) == 137


@pytest.mark.parametrize(
    ("words", "code"),
    [(("rm", "--force"), "137\n"), (("stop", "--time", "60"), "9\n"), (("kill", "--signal", "TERM"), "9\n")],
    ids=["rm", "stop", "kill"],
)
def test_a_container_that_is_ended_behind_pgpu_s_back_ends_its_job_and_frees_its_lease(
    words: tuple[str, ...], code: str, images: str, shared_place: Place, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    name = _started_until_ready(images, shared_place, eventually)
    docker(*words, name)
    assert shared_place.run("wait", name).stdout == code
    eventually(lambda: shared_place.json("gpus")["gpus"][0]["granted_bytes"] == 0)
    assert docker("ps", "--all", "--quiet", "--filter", f"name={name}").stdout == b""


def test_a_container_that_the_kernel_ends_for_want_of_ram_has_137_and_frees_its_lease(
    images: str, shared_place: Place, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    name = _started_until_ready(images, shared_place, eventually)
    docker("update", "--memory", "32m", "--memory-swap", "32m", name)
    docker("exec", name, "touch", "/tmp/go")
    assert shared_place.run("wait", name).stdout == "137\n"
    eventually(lambda: shared_place.json("gpus")["gpus"][0]["granted_bytes"] == 0)


def _started_until_ready(image: str, place: Place, eventually: Callable[[Callable[[], Any]], Any]) -> str:
    """Start a container that ends with 9 on SIGTERM, and takes a GiB of RAM once /tmp/go exists."""
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    script = "trap 'exit 9' TERM; echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; "
    script += "exec dd if=/dev/zero of=/dev/null bs=1G count=1 iflag=fullblock"
    words = ("run", *_SLICE, "--detach", "--name", name, "--image", f"{image}:tiny", "--", *_SHELL)
    done = place.run(*words, script)
    assert done.returncode == 0, done.stderr
    eventually(lambda: b"begun" in docker("logs", name, check=False).stdout)
    return name
