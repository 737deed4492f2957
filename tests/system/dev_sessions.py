"""One `pgpu dev` as a process."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
from tests.waiting import is_over, until

PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")


@dataclass
class Dev:
    """One `pgpu dev` and what it said."""

    process: "subprocess.Popen[str]"
    source: Path
    lines: list[str] = field(default_factory=list)

    def said(self, words: str, times: int = 1) -> list[str]:
        """Wait until it said something so often, and return those lines."""
        return until(
            lambda: found if len(found := [line for line in self.lines if words in line]) >= times else [],
            lambda: self.lines,
        )

    @property
    def port(self) -> int:
        """Where it serves, as it said."""
        return int(re.search(r"http://127.0.0.1:(\d+)/", self.said("is served on")[0])[1])  # type: ignore[index]

    def ask(self, body: object) -> Any:
        """Post JSON and return the answer's."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", "/", json.dumps(body), headers)
        reply = connection.getresponse()
        answer = reply.read()
        connection.close()
        assert reply.status == 200, answer
        return json.loads(answer)

    def write(self, code: str) -> None:
        """Edit the function."""
        (self.source / "app.py").write_text(code, "utf-8")


@contextmanager
def dev(
    source: Path, code: str, *flags: str, app: str = "app.py:Adder", environment: dict[str, str] | None = None
) -> Iterator[Dev]:
    (source / "app.py").write_text(code, "utf-8")
    process = subprocess.Popen(
        (*PGPU, *flags, "dev", app, "--port", "0"),
        cwd=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert process.stdout is not None
    running = Dev(process, source)
    reader = Thread(target=lambda: running.lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        yield running
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, running.lines
        reader.join()
        process.stdout.close()
        assert [each for each in family if not is_over(each)] == []
