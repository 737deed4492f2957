"""Starts a job's supervisor process. It outlives the process that starts it: a session of its own, no inherited descriptor."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from pgpu.engine.process.paths import JobPaths
from pgpu.errors import NodeError


def spawn_supervisor(command: Sequence[str], places: JobPaths, environment: Mapping[str, str]) -> None:
    """Start a supervisor; its standard error is the job's `supervisor.log`.

    Args:
        command: argv, the job's id included.
        places: Of the job's files; made if they are missing.
        environment: Of the process that submitted the job.

    Raises:
        NodeError: The process cannot be started.
    """
    places.make()
    try:
        with places.supervisor_log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
    except OSError as exc:
        raise NodeError(f"no supervisor can be started: {exc}") from exc
    # Reaps the supervisor if it ends before this process does; a daemon thread does not delay this process's exit.
    threading.Thread(target=process.wait, daemon=True).start()


def redirect_stderr(places: JobPaths) -> None:
    """Redirect this process's standard error to the job's `supervisor.log`, as in `spawn_supervisor`.

    Raises:
        NodeError: The job's directories cannot be made.
    """
    places.make()
    with places.supervisor_log.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
