"""Jobs as containers of Docker, or of Podman through its compatible socket.

Needs the Docker SDK (the extra `docker`), so it is imported only when a container is requested.
"""
