"""The log lines of pgpu.kubernetes, as a driver's operator reads them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect lines until the block ends."""
    lines: list[str] = []
    logger, collector = logging.getLogger("pgpu.kubernetes"), _Collector(lines)
    level, logger.propagate = logger.level, False
    logger.setLevel(logging.INFO)
    logger.addHandler(collector)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = True
