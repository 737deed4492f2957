"""The client of the container engine: its address, its calls, and the translation of its errors."""

from pgpu.runtimes.docker.docker_engine import Engine, EngineGoneError
from pgpu.runtimes.docker.engine.addresses import engine_url

__all__ = ["Engine", "EngineGoneError", "engine_url"]
