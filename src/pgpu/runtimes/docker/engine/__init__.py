"""The container engine: where it listens, what it is asked, and its errors as ours. The SDK is used in here alone."""

from pgpu.runtimes.docker.engine.addresses import engine_url
from pgpu.runtimes.docker.engine.connection import Engine, EngineGoneError

__all__ = ["Engine", "EngineGoneError", "engine_url"]
