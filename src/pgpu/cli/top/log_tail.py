"""The last lines of a job's output, followed in a daemon thread that ends with the job or with this process."""

import re
import threading
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence

from pgpu.cli.output.console import visible
from pgpu.cli.output.plain_table import cut
from pgpu.client import Client
from pgpu.errors import PgpuError

_MOST_LINES = 1000
_MOST_CHARACTERS = 10_000
"""Of a line that has not ended."""

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LogTail:
    """The output of one job, both streams in the order in which they came."""

    def __init__(self, client: Client, job_id: str) -> None:
        """Start to read."""
        self._client, self._job_id = client, job_id
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._rest = ""
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def lines(self, width: int) -> Sequence[str]:
        """Return the lines, cut to a width, without colours and other characters that steer a terminal."""
        shown = (*self._lines.copy(), *((self._rest,) if self._rest else ()))
        return [cut(log_line(line), width) for line in shown] or ["(no output yet)"]

    def _follow(self) -> None:
        # Pieces end anywhere, in the middle of a character too.
        decoders = {stream: getincrementaldecoder("utf-8")("replace") for stream in ("stdout", "stderr")}
        try:
            for stream, data in self._client.logs(self._job_id, follow=True, tail_lines=_MOST_LINES):
                *whole, rest = (self._rest + decoders[stream].decode(data)).split("\n")
                self._lines.extend(whole)
                self._rest = rest[-_MOST_CHARACTERS:]
        except PgpuError as exc:
            self._lines.append(f"pgpu: {exc}")


def log_line(line: str) -> str:
    """Return one line of output as plain text: what overwrote it, without colours, other control characters escaped."""
    last = _STEERING.sub("", line).rstrip("\r").rpartition("\r")[2]
    return visible(last.expandtabs())
