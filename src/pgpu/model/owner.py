"""Who owns jobs that no user of this machine asked for."""

DOCKER_UID = 4_294_967_294
"""Owner of every job of `docker run --runtime=pgpu`. A container engine does not say for whom it creates a container, so all
of them are one owner's, `docker`, with one quota. The kernel gives this number to no user: (uid_t) -2."""

DOCKER_NAME = "docker"
"""How that owner is called."""
