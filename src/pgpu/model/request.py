"""What a job asks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """An amount of GPU memory on a number of GPUs."""

    memory_bytes: int
    """Per GPU; the CUDA context is included."""

    gpu_count: int = 1
    """Distinct GPUs, each with a slice of `memory_bytes`; at least 1."""
