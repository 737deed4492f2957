"""The unit tests' command line over a fake client."""

from tests.unit.conftest import client, run

__all__ = ["client", "run"]
