"""Where pgpu keeps things: the ledger, the runtime directory, and what was left in it."""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

from pgpu.app.composition import open_ledger
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.model.finding import Finding, fine, weak


def ledger(settings: Settings) -> Iterator[Finding]:
    """Read the ledger and check it, page by page."""
    found = open_ledger(settings)
    live = found.entries(include_final=False)
    yield fine("state directory", f"{found.path}: {len(live)} live jobs")


def runtime_folder(settings: Settings) -> Iterator[Finding]:
    """Find the runtime directory, or make it."""
    yield fine("runtime directory", str(runtime_directory(settings.runtime_dir, settings.state_dir)))


def logout(settings: Settings) -> Iterator[Finding]:
    """Say whether logging out would take the runtime directory away."""
    if os.geteuid() == 0 or not Path("/run/systemd/system").is_dir():
        return
    user = getpass.getuser()
    if Path("/var/lib/systemd/linger", user).exists():
        yield fine("logout", "jobs outlive your logout")
        return
    yield weak(
        "logout",
        f"systemd removes {runtime_directory(settings.runtime_dir, settings.state_dir)} when you log out, and with it"
        " the slices of running jobs",
        f"loginctl enable-linger {user}",
    )


def leftovers(settings: Settings) -> Iterator[Finding]:
    """Look for slices that no live job has."""
    slices = runtime_directory(settings.runtime_dir, settings.state_dir) / "slices"
    known = {entry.job.id for entry in open_ledger(settings).entries(include_final=False)}
    orphans = sorted(path.name for path in slices.glob("*") if path.name not in known)
    if orphans:
        yield weak("leftovers", f"slices without a job: {', '.join(orphans)}", f"remove them from {slices}")
    else:
        yield fine("leftovers", "no slice is left without its job")
