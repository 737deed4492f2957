"""What somebody saw who looked at a control daemon: how it is, and whose processes are its clients.

A look costs a few programs and, where the daemon is slow, many seconds. So one process looks, and the others read what it
wrote beside the daemon. It refuses to say what follows for a job.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pgpu.enforcement.mps.control import MpsControl, ServerStatus
from pgpu.enforcement.mps.daemon import Health, health_without_servers
from pgpu.host.atomic_file import write_atomically


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look."""

    began_seconds: float
    """On the monotonic clock, which all processes of a machine share."""

    health: Health
    clients: Mapping[int, int] = field(default_factory=dict)
    """Each client's PID, and its server's."""

    faulted: frozenset[int] = frozenset()
    """Servers that wait for all clients that a fault hit to go."""


def look_at(control: MpsControl) -> Sighting:
    """Ask a daemon for all of it; takes as long as the daemon does.

    Where any answer is missing nobody's clients are known: half of them would make strangers of the others.
    """
    began_seconds = time.monotonic()
    servers = control.servers()
    listed = {server: control.clients(server) for server in servers or ()}
    if servers is None or None in listed.values():
        return Sighting(began_seconds, health_without_servers(control))
    clients = {pid: server for server, pids in listed.items() for pid in pids or ()}
    faulted = frozenset(server for server in servers if control.status(server) is ServerStatus.FAULT)
    return Sighting(began_seconds, Health.FAULT if faulted else Health.WELL, clients, faulted)


def last_sighting(control: MpsControl) -> Sighting | None:
    """Return what was seen last, by whomever; None where nobody looked yet."""
    try:
        began_seconds, health, clients, faulted = json.loads(_place(control).read_bytes())
        return Sighting(float(began_seconds), Health[health], {int(k): int(v) for k, v in clients}, frozenset(faulted))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def publish_sighting(control: MpsControl, seen: Sighting) -> None:
    """Write down what was seen, for everybody who watches a job there.

    Raises:
        OSError: It cannot be written: the daemon's directory was removed.
    """
    text = json.dumps([seen.began_seconds, seen.health.name, list(seen.clients.items()), sorted(seen.faulted)])
    write_atomically(_place(control), text.encode(), 0o600)


def _place(control: MpsControl) -> Path:
    return control.pipe_directory.parent / "seen"
