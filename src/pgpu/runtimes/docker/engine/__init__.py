"""The client of the container engine: its address, its calls, and the translation of its errors."""

from pgpu.runtimes.docker.engine.addresses import engine_url
from pgpu.runtimes.docker.engine.connection import Engine, EngineGoneError

__all__ = ["Engine", "EngineGoneError", "engine_url"]
