"""Jobs in containers that an engine created by `docker run --runtime=pgpu`.

Such a container exists and is held back by `pgpu-hold` before its job has a lease; starting the job releases it. Containers
are not created or removed here.
"""

from pgpu.runtimes.container_record import Container, container_of
from pgpu.runtimes.oci_runtime import CONTAINER_VARIABLE, OciRuntime

__all__ = ["CONTAINER_VARIABLE", "Container", "OciRuntime", "container_of"]
