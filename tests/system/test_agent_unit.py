"""A server under the restrictions of its systemd unit, whose agents process 1 starts: jobs run with their own rights.

Without systemd: the server has a mount namespace with a read-only root and the unit's capabilities, `systemctl` passes its arguments
on to this process, and this process starts what the agent's unit starts.
"""

import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place
from tests.unit.test_systemd_unit import UNIT, settings
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.engine.agent import agents
from pgpu.engine.agent.agents import Agents
from pgpu.engine.settings import EngineSettings
from pgpu.errors import NodeError

RESTRICTED = """
mount -o bind,remount,ro / || exit 77
! touch "$1/server" 2>/dev/null || exit 77
shift
exec setpriv --no-new-privs "--bounding-set=$1" "${@:2}"
"""


def start_agents(asked: Path, environment: dict[str, str], started: list[subprocess.Popen[bytes]]) -> None:
    """Be process 1: start an instance for each line of `systemctl start`, unless it runs; ends at an empty one."""
    while request := asked.read_text(encoding="utf-8").strip():
        name = re.fullmatch(r"start --no-block pgpu-agent@(.*)\.service", request)
        assert name is not None
        instance = re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name[1])
        _, _, _, state, *words = settings()["ExecStart"].split()
        assert state == "/var/lib/pgpu"
        command = [sys.executable, "-P", "-m", "pgpu.app", "--state-dir", environment["PGPU_STATE_DIR"]]
        if all(each.poll() is not None for each in started):
            command += [instance if word == "%I" else word for word in words]
            started.append(subprocess.Popen(command, env=environment, cwd="/", start_new_session=True))


def test_a_systemctl_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(agents, "_LOCK_PATIENCE_SECONDS", 0.1)
    started = Agents(EngineSettings(tmp_path, tmp_path, agent_unit="pgpu-agent"), ())
    with pytest.raises(NodeError, match="systemctl does not end"):
        started.ensure(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="the server's unit is root's")
def test_a_job_of_a_restricted_server_has_the_rights_of_its_agent(place: Place) -> None:
    asked, programs, started = place.path / "asked", place.path / "programs", list[subprocess.Popen[bytes]]()
    os.mkfifo(asked)
    programs.mkdir()
    (programs / "systemctl").write_text(f'#!/bin/sh\necho "$*" > {asked}\n')
    (programs / "systemctl").chmod(0o755)
    own = {name: value for name, value in place.environment.items() if name != "PGPU_SIMULATE"}
    process_one = threading.Thread(target=start_agents, args=(asked, own, started))
    process_one.start()
    capabilities = settings(UNIT)["CapabilityBoundingSet"].lower().replace("cap_", "+").split()
    restricted = ["unshare", "--mount", "--propagation", "slave", "bash", "-c", RESTRICTED, "bash"]
    server_environment = place.environment | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PGPU_AGENT_UNIT": "pgpu-agent",
    }
    host = f"unix://{place.path}/pgpu.sock"
    with TemporaryDirectory(dir=UNIT.parents[2]) as closed:  # on the root, which the server cannot write
        serve = [str(PGPU), "serve", "--host", host, "--gateway", "none"]
        server = subprocess.Popen(
            [*restricted, closed, ",".join(["-all", *capabilities]), *serve],
            env=server_environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: (place.path / "pgpu.sock").exists() or server.poll() is not None)
            if server.poll() == 77:
                pytest.skip("the root cannot be made read-only in a mount namespace here")
            script = f"touch {closed}/job && grep -E 'CapBnd|NoNewPrivs' /proc/self/status && echo pid $PPID"
            done = place.run("run", "--memory", "1GiB", "--", "sh", "-c", script, PGPU_HOST=host)
            assert done.returncode == 0, done.stderr
            assert Path(closed, "job").exists()
            mine = Path("/proc/self/status").read_text(encoding="utf-8")
            theirs = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
            for name in ("CapBnd", "NoNewPrivs"):
                line = re.search(rf"^{name}:.*$", mine, re.MULTILINE)
                assert line is not None
                assert line[0] in done.stdout
            assert "NoNewPrivs:\t1" in theirs
        finally:
            server.terminate()
            server.wait(DEADLINE_SECONDS)
            asked.write_text("\n", encoding="utf-8")
            process_one.join()
            for each in started:
                with suppress(subprocess.TimeoutExpired):
                    each.wait(DEADLINE_SECONDS)
