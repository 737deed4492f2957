"""Jobs as containers of Docker, or of Podman through its compatible socket; imported when a container is requested."""
