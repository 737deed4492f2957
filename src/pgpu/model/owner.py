"""Who owns jobs that no user of this machine asked for."""

DOCKER_UID = 4_294_967_294
"""Owner of every job of `docker run --runtime=pgpu`. A container engine does not say for whom it creates a container, so all
of them are one owner's, `docker`, with one quota. The kernel gives this number to no user: (uid_t) -2."""

DOCKER_NAME = "docker"
"""How that owner is called."""

KUBERNETES_UID = 4_294_967_293
"""Owner of the slices of all pods: namespaces and their quotas are the cluster's affair. Likewise nobody's number."""

KUBERNETES_NAME = "kubernetes"
"""How that owner is called."""

OWNER_UIDS = {DOCKER_NAME: DOCKER_UID, KUBERNETES_NAME: KUBERNETES_UID}
OWNER_NAMES = {uid: name for name, uid in OWNER_UIDS.items()}
