"""A job's output as a page shows it: complete lines are appended, and the last, unfinished line is replaced.

A position in a log is the offset of a record and the number of its bytes that are settled. So a progress bar, which writes over its line,
and a character that was written in two pieces are read again until they are complete.
"""

import codecs
import re

from pgpu.server.dashboard.picture import printable
from pgpu.services.output_log import LogPart

MOST_LINE_BYTES = 1 << 16
"""A longer unfinished line is shown in pieces: it is not read again each second."""

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def output_of(part: LogPart, after: int, within: int) -> dict[str, object]:
    """Return the text of a log's part for a page, and the position from which to read on.

    Args:
        part: Read from `after` on.
        after: Offset of a record, as the last answer had it; 0 for the first one.
        within: Settled bytes of this record, likewise.
    """
    data = b"".join(payload for _, payload in part.records)
    is_skipped = part.begin != after
    # The rest of a line whose begin is left out is no line, unless there is none but it.
    begin = data.find(b"\n") + 1 if is_skipped else within
    data = data[begin:]
    line = data.rfind(b"\n") + 1
    over = line + data[line:].rstrip(b"\r").rfind(b"\r") + 1
    if len(data) - over > MOST_LINE_BYTES:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(data)
        line = over = len(data) - len(decoder.getstate()[0])
    offset, settled = part.end, begin + over
    for at, payload in part.records:
        if settled < len(payload):
            offset = at
            break
        settled -= len(payload)
    return {
        "text": log_text(data[:line]),
        "tail": log_text(data[over:]),
        "after": offset,
        "within": settled,
        "skipped": is_skipped,
    }


def log_text(data: bytes) -> str:
    """Return a job's output for a page: without colours, a line that was written over as its last state, the rest escaped."""
    lines = _STEERING.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n")).split("\n")
    last = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in last)
