"""A project of Docker Compose whose services run on a runtime of pgpu."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.docker.oci_place import OciPlace
from tests.waiting import DEADLINE_SECONDS


@dataclass(frozen=True)
class Project:
    """One Compose project."""

    place: OciPlace
    directory: Path

    def write(self, **services: dict[str, Any]) -> None:
        """Write the project's file; JSON is YAML."""
        common = {"image": f"{self.place.images}:latest", "runtime": self.place.runtime, "network_mode": "none"}
        content = {"version": "2.4", "services": {name: {**common, **words} for name, words in services.items()}}
        (self.directory / "docker-compose.yml").write_text(json.dumps(content))

    def compose(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one verb of Compose."""
        return subprocess.run(
            ["docker-compose", "--no-ansi", "--project-name", self.place.runtime, *words],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def states(self) -> dict[str, str]:
        """Return the newest job's state of each service of the project's file."""
        services = json.loads((self.directory / "docker-compose.yml").read_text())["services"]
        named = [job for job in self.place.jobs() if "_" in job["name"]]
        found = {job["name"].split("_")[1]: job["state"] for job in named}
        return {name: state for name, state in found.items() if name in services}
