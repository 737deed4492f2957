"""Load by wrk. Its figures are read by a Lua script, since the printed ones are rounded.

Answers that are not 2xx are counted separately; no bar is checked here.
"""

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = """
wrk.method = "POST"
wrk.body = [==[%s]==]
wrk.headers["Content-Type"] = "application/json"
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\n{"requests": %%d, "seconds": %%f, "failed": %%d, "p50_ms": %%f, "p99_ms": %%f, "max_ms": %%f}\\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """Figures of one run."""

    requests: int
    seconds: float
    failed: int
    """Not answered, or not with 2xx."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def requests_per_second(self) -> float:
        """Answers, failed ones included."""
        return self.requests / self.seconds


def load(url: str, body: str, connections: int, seconds: int) -> Load:
    """Post one body again and again over some connections that stay.

    Args:
        url: Where to.
        body: JSON; without `]==]`.
        connections: How many at a time, all from one thread.
        seconds: How long.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT % body)
        script.flush()
        command = ("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", script.name, url)
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(script.name).parent)
    return Load(**json.loads(done.stdout.strip().splitlines()[-1]))
