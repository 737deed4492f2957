"""The device plugin of one node, assembled: its socket, its list, its slices, and one thread that looks after all of them."""

import threading
from collections.abc import Callable
from pathlib import Path

from pgpu.engine.claims import Claims
from pgpu.errors import PgpuError
from pgpu.kubernetes.device_plugin.kubelet_registration import DIRECTORY, SOCKET, Registrar
from pgpu.kubernetes.device_plugin.plugin_service import DevicePluginService
from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
from pgpu.kubernetes.device_plugin.unit_ids import RESOURCE
from pgpu.kubernetes.device_plugin.unit_inventory import UnitInventory
from pgpu.kubernetes.device_plugin.unit_slices import GRACE_SECONDS, UnitSlices
from pgpu.kubernetes.driver_readiness import Readiness
from pgpu.kubernetes.gpu_health import HealthSource
from pgpu.kubernetes.kubelet_sockets import SocketServer
from pgpu.kubernetes.node_pods import PodResources

REGISTERED = "registered with the kubelet"
GPUS = "GPUs read"
PODS = "pods known"
SUBJECTS = (REGISTERED, GPUS, PODS)
"""What a `Readiness` has to hear of."""

LOOK_SECONDS = 1.0


class DevicePlugin:
    """Offers GiB of GPU memory to the kubelet of this node until it is closed; slices stay."""

    def __init__(
        self,
        *,
        claims: Claims,
        pods: PodResources,
        delivering: SliceDelivery,
        readiness: Readiness,
        kubelet_directory: Path,
        health: HealthSource | None = None,
        say: Callable[[str], None],
        grace_seconds: float = GRACE_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Do nothing yet.

        Args:
            claims: Of this node; nobody else makes slices for containers of its pods.
            pods: Who has which units.
            delivering: How containers get a slice.
            readiness: Hears of `SUBJECTS`.
            kubelet_directory: Usually `/var/lib/kubelet`.
            health: Who knows of fatal errors of GPUs; None where nobody looks.
            say: Takes one line for the operator.
            grace_seconds: How long units must be missing among those of pods before their slice goes.
            look_seconds: How often kubelet, GPUs and pods are looked at.
        """
        self._pods = pods
        self._readiness = readiness
        self._say = say
        self._look_seconds = look_seconds
        self._allocations = UnitSlices(claims, delivering, say, grace_seconds=grace_seconds)
        self._roster = UnitInventory(claims, self._allocations.in_use, health)
        service = DevicePluginService(self._roster, self._allocations, delivering)
        self._server = SocketServer((kubelet_directory / DIRECTORY / SOCKET).absolute(), service.add_to)
        self._registrar = Registrar(kubelet_directory, self._server, lambda: service.is_heard)
        self._thread = threading.Thread(target=self._look_after, name="device-plugin")
        self._is_over = threading.Event()

    def start(self) -> None:
        """Take charge of what slices there are, and from now on keep the kubelet informed.

        Raises:
            NodeError: It is not known which slices there are.
        """
        self._allocations.take_over()
        self._thread.start()

    def close(self) -> None:
        """Leave the kubelet; slices stay, and so do the containers that have them."""
        self._is_over.set()
        self._roster.close()
        if self._thread.is_alive():
            self._thread.join()
        self._server.stop()

    def _look_after(self) -> None:
        while not self._is_over.is_set():
            self._try(GPUS, self._roster.refresh)
            self._try(REGISTERED, self._registrar.look)
            self._try(PODS, self._look_at_pods)
            self._is_over.wait(self._look_seconds)

    def _try(self, subject: str, look: Callable[[], None]) -> None:
        try:
            look()
        except PgpuError as exc:
            self._readiness.wrong(subject, str(exc) if exc.hint is None else f"{exc} ({exc.hint})")
        except Exception as exc:  # noqa: BLE001 - a plugin that stopped looking would offer what is not there
            self._readiness.wrong(subject, f"a bug of pgpu: {exc!r}")
        else:
            self._readiness.right(subject)

    def _look_at_pods(self) -> None:
        shown = {
            unit
            for pod in self._pods.pods()
            for container in pod.containers
            for each in container.units
            if each.resource == RESOURCE
            for unit in each.ids
        }
        for uid in self._allocations.look(shown):
            self._say(f"slice {uid} is free: no pod has its units any more")
