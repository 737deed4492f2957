"""Jobs as containers of Docker, or of Podman through its compatible socket.

It needs the Docker SDK (the extra `docker`); import it only where a container is asked for.
"""

from pgpu.runtimes.cgroup_leaf import LimitCgroup
from pgpu.runtimes.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime", "LimitCgroup"]
