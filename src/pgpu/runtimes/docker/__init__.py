"""Jobs as containers of Docker, or of Podman through its compatible socket.

It needs the Docker SDK (`pip install 'pgpu[docker]'`); import it only where a container is asked for.
"""

from pgpu.runtimes.cgroup_leaf import LimitCgroup
from pgpu.runtimes.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime", "LimitCgroup"]
