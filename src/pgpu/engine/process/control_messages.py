"""The words that clients send to a job's supervisor, beside its streams."""

from pgpu.engine.engine import Engine

SIGNAL_PREFIX = b"signal"
"""Begins a message that carries a signal for the job: `signal 10`."""

WINDOW_PREFIX = b"window"
"""Begins a message with the columns and rows of a client's terminal: `window 80 24`."""


def send_signal(engine: Engine, job_id: str, number: int) -> None:
    """Hand a job's supervisor a signal for the job's main process; it keeps it until the job runs."""
    engine.wake([job_id], b"%s %d" % (SIGNAL_PREFIX, number))


def send_window(engine: Engine, job_id: str, columns: int, rows: int) -> None:
    """Tell a job's supervisor the size of a client's terminal, in characters."""
    engine.wake([job_id], b"%s %d %d" % (WINDOW_PREFIX, columns, rows))
