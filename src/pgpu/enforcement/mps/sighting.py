"""Snapshots of a control daemon: its health and the PIDs of its clients.

A snapshot runs the control program several times and, if the daemon is slow, takes many seconds. One process takes it and
writes it beside the daemon's directory; the others read that file.
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
    """One snapshot of a daemon."""

    began_seconds: float
    """Start of the snapshot on the monotonic clock, which all processes of a machine share."""

    health: Health
    clients: Mapping[int, int] = field(default_factory=dict)
    """Server PID by client PID."""

    faulted: frozenset[int] = frozenset()
    """Servers that wait until all clients affected by a fault are gone."""


def look_at(control: MpsControl) -> Sighting:
    """Query a daemon; takes as long as the daemon needs.

    If any response is missing, the client list is empty: with a partial list, the other clients would count as foreign processes.
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
    """Return the last published snapshot of any process; None if there is none."""
    try:
        began_seconds, health, clients, faulted = json.loads(_place(control).read_bytes())
        return Sighting(float(began_seconds), Health[health], {int(k): int(v) for k, v in clients}, frozenset(faulted))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def publish_sighting(control: MpsControl, seen: Sighting) -> None:
    """Publish a snapshot for the watchers of all jobs under this daemon.

    Raises:
        OSError: It cannot be written: the daemon's directory was removed.
    """
    text = json.dumps([seen.began_seconds, seen.health.name, list(seen.clients.items()), sorted(seen.faulted)])
    write_atomically(_place(control), text.encode(), 0o600)


def _place(control: MpsControl) -> Path:
    return control.pipe_directory.parent / "seen"
