"""A kubelet as a DRA driver sees it: it finds the driver in its registry, registers it, and prepares claims."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as health_wire
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.kubernetes.generated import plugin_registration_pb2 as registration
from pgpu.kubernetes.kubelet_sockets import method_caller

V1 = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
CALL_SECONDS = 45
"""Timeout of a kubelet's calls."""

Prepared = Mapping[str, dra.NodePrepareResourceResponse]
Unprepared = Mapping[str, dra.NodeUnprepareResourceResponse]


@dataclass
class FakeKubelet:
    """A kubelet with its directory and its registered drivers."""

    directory: Path
    _channels: list[grpc.Channel] = field(default_factory=list)
    _endpoint: grpc.Channel | None = None

    def __post_init__(self) -> None:
        for name in ("plugins", "plugins_registry"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def sockets(self) -> list[Path]:
        """Return the sockets in the registry, without hidden names."""
        found = (self.directory / "plugins_registry").iterdir()
        return [path for path in found if path.is_socket() and not path.name.startswith(".")]

    def register(self, refusal: str = "") -> registration.PluginInfo:
        """Register the one driver in the registry, or refuse it, and connect to it."""
        (socket,) = self.sockets()
        channel, service = self._channel(socket), registration.DESCRIPTOR.services_by_name["Registration"]
        info: registration.PluginInfo = method_caller(channel, service, "GetInfo")(
            registration.InfoRequest(), timeout=CALL_SECONDS, wait_for_ready=True
        )
        status = registration.RegistrationStatus(plugin_registered=not refusal, error=refusal)
        method_caller(channel, service, "NotifyRegistrationStatus")(status, timeout=CALL_SECONDS)
        if not refusal:
            self._endpoint = self._channel(Path(info.endpoint))
        return info

    def prepare(self, *claims: dra.Claim) -> Prepared:
        """Prepare all of them in one call."""
        return self._prepare(V1, claims)

    def begin_prepare(self, claim: dra.Claim, timeout_seconds: float = CALL_SECONDS) -> Any:
        """Begin to prepare a claim, and return the call: a `grpc.Future` of the whole answer."""
        service = dra.DESCRIPTOR.services_by_name["DRAPlugin"]
        caller = method_caller(self.endpoint, service, "NodePrepareResources", V1)
        request = dra.NodePrepareResourcesRequest(claims=[claim])
        return caller.future(request, timeout=timeout_seconds, wait_for_ready=True)  # type: ignore[attr-defined]

    def prepare_as_older(self, *claims: dra.Claim) -> Prepared:
        """Prepare as a kubelet of 1.33 does, over v1beta1. Its responses have no share_id; a sent one would be an unknown field."""
        return self._prepare(V1BETA1, claims)

    def unprepare(self, *claims: dra.Claim) -> Unprepared:
        """Give all of them back in one call."""
        answer: dra.NodeUnprepareResourcesResponse = self._call(
            V1, "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest(claims=claims)
        )
        return answer.claims

    def health(self) -> Iterator[health_wire.NodeWatchResourcesResponse]:
        """Yield the devices' health until the connection is dropped."""
        service = health_wire.DESCRIPTOR.services_by_name["DRAResourceHealth"]
        watch = method_caller(self.endpoint, service, "NodeWatchResources")
        with contextlib.suppress(grpc.RpcError):
            yield from watch(health_wire.NodeWatchResourcesRequest(), wait_for_ready=True)

    def _prepare(self, service: str, claims: tuple[dra.Claim, ...]) -> Prepared:
        answer: dra.NodePrepareResourcesResponse = self._call(
            service, "NodePrepareResources", dra.NodePrepareResourcesRequest(claims=claims)
        )
        return answer.claims

    def _call(self, service: str, method: str, request: object) -> Any:
        caller = method_caller(self.endpoint, dra.DESCRIPTOR.services_by_name["DRAPlugin"], method, service)
        return caller(request, timeout=CALL_SECONDS, wait_for_ready=True)

    @property
    def endpoint(self) -> grpc.Channel:
        assert self._endpoint is not None, "no driver is registered"
        return self._endpoint

    def restart(self) -> None:
        """Drop all connections, as a restarting kubelet does."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._endpoint = None

    def _channel(self, socket: Path) -> grpc.Channel:
        channel = grpc.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),))
        self._channels.append(channel)
        return channel


def in_threads(acts: Iterable[Any]) -> None:
    """Run all in threads at the same time, and raise the first error."""
    errors: list[BaseException] = []

    def kept(act: Any) -> None:
        try:
            act()
        except BaseException as exc:  # noqa: BLE001 - raised by the thread that waits
            errors.append(exc)

    threads = [threading.Thread(target=kept, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
