"""Fixtures of the system tests, which the storms use as well."""

from tests.system.conftest import either_place, eventually, place
from tests.system.docker.conftest import images

__all__ = ["either_place", "eventually", "images", "place"]
