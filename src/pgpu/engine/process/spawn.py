"""Starts a job's supervisor: a session of its own, no descriptor of ours, so that it outlives whoever started it."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from pgpu.engine.process.paths import JobPaths
from pgpu.errors import NodeError


def spawn_supervisor(command: Sequence[str], places: JobPaths, environment: Mapping[str, str]) -> None:
    """Start `command` detached.

    Args:
        command: argv, the job's id included.
        places: Where the job's files lie; made if they are missing.
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
    # Reaps it if it ends before this process does; as a daemon the thread never holds this process back.
    threading.Thread(target=process.wait, daemon=True).start()


def speak_into(places: JobPaths) -> None:
    """Let what this process has to say from now on go where a supervisor's words go.

    Raises:
        NodeError: The job's directories cannot be made.
    """
    places.make()
    with places.supervisor_log.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
