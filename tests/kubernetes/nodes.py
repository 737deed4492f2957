"""The cluster's nodes as their operators see them: a shell, and the power switch.

Which command gives one is said by whoever runs the tests, since every kind of cluster has its own:

    PGPU_KUBERNETES_NODE_SHELL     what runs a command on {node}: `docker exec -i {node}` (kind), `ssh root@{node}`
    PGPU_KUBERNETES_NODE_RESTART   what takes the power from {node} and gives it back: `docker restart -t 0 {node}` (kind)
"""

import os
import shlex
import subprocess
from dataclasses import dataclass

from tests.waiting import DEADLINE_SECONDS

SHELL = "PGPU_KUBERNETES_NODE_SHELL"
RESTART = "PGPU_KUBERNETES_NODE_RESTART"
CDI_DIRECTORY = "/var/run/cdi"


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str

    def run(self, *words: str) -> str:
        """Run a command on the node, which must succeed, and return what it printed."""
        return _run([*self._command(SHELL), *words])

    def restart(self) -> None:
        """Take the node's power and give it back."""
        _run(self._command(RESTART))

    def driver_processes(self) -> list[int]:
        """Return the process ids of pgpu's driver on the node; none while it is away."""
        command = [*self._command(SHELL), "pgrep", "-f", "[p]gpu kubernetes driver"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        return [int(line) for line in done.stdout.split()]

    def kill_the_driver(self) -> list[int]:
        """Kill pgpu's driver as no signal handler sees it, and return who that was."""
        killed = self.driver_processes()
        self.run("kill", "-KILL", *map(str, killed))
        return killed

    def cdi_files(self) -> list[str]:
        """Return the names of the CDI files of claims."""
        return [name for name in self.run("ls", CDI_DIRECTORY).split() if name.startswith("pgpu.io-claim-")]

    def _command(self, variable: str) -> list[str]:
        return shlex.split(os.environ[variable].format(node=self.name))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
    return done.stdout
