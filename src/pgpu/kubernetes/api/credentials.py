"""Where the API server is and as whom to ask it: a pod's service account, or a kubeconfig.

A service account's token is replaced every hour: it is read again when the server no longer takes it. Connections are
kept alive by the kernel, so that a server whose machine died is noticed within two minutes, by a watch, too.
"""

import os
import socket
from pathlib import Path

import httpx2 as httpx
import msgspec
import yaml
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import GenericSyncClient

from pgpu.errors import ClusterAccessError
from pgpu.kubernetes.api.api_connection import NO_CREDENTIALS, first_line
from pgpu.kubernetes.api.type_preparation import prepare_type

ANSWER_SECONDS = 10.0
"""How long one answer may take; longer than an API server waits for its own store."""

_CONNECT_SECONDS = 5.0
_HINT = "run in a pod with a service account, or name a file with --kubeconfig"
_KEPT_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


def connect(
    kubeconfig: Path | None = None, service_account: Path = Path(SERVICE_ACCOUNT), *, context: str | None = None
) -> GenericSyncClient:
    """Return a client of the cluster; nothing is asked yet.

    Args:
        kubeconfig: Says where and as whom; None: the pod's service account.
        service_account: Directory with `token`, `ca.crt` and `namespace`.
        context: Which of the kubeconfig's contexts; None: its current one.

    Raises:
        ClusterAccessError: The files are missing or wrong.
    """
    prepare_type()
    try:
        configuration = _configuration(kubeconfig, service_account, context)
        return GenericSyncClient(_parameters(configuration), configuration)
    except (*NO_CREDENTIALS, yaml.YAMLError, msgspec.MsgspecError) as exc:
        raise ClusterAccessError(f"no way to Kubernetes' API server: {first_line(exc)}", hint=_HINT) from exc


def _configuration(kubeconfig: Path | None, service_account: Path, context: str | None) -> SingleConfig:
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ConfigError("this is no pod of a cluster, and no kubeconfig was named")
    source = (
        KubeConfig.from_service_account(service_account) if kubeconfig is None else KubeConfig.from_file(kubeconfig)
    )
    chosen = source.get(context)
    if chosen is None:
        raise ConfigError("the kubeconfig has no current context")
    return chosen if chosen.user is not None else chosen._replace(user=User())


def _parameters(configuration: SingleConfig) -> ConnectionParams:
    user = configuration.user or User()
    trusted = verify_cluster(configuration.cluster, user, configuration.abs_file, trust_env=False)
    transport = httpx.HTTPTransport(verify=trusted, trust_env=False, socket_options=_KEPT_ALIVE)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    return ConnectionParams(timeout=timeout, trust_env=False, transport=transport)
