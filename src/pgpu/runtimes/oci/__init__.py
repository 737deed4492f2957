"""Containers that somebody else created, by `docker run --runtime=pgpu`, as jobs.

Such a container exists and is held back by `pgpu-hold` before its job has a lease; to start the job is to say the word.
It refuses to create or remove containers.
"""

from pgpu.runtimes.oci.record import Container, container_of
from pgpu.runtimes.oci.runtime import CONTAINER_VARIABLE, OciRuntime

__all__ = ["CONTAINER_VARIABLE", "Container", "OciRuntime", "container_of"]
