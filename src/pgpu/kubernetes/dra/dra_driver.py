"""The life of a DRA driver: slices and CDI files are restored first, then the cluster is informed, then the kubelet's sockets open.

Only Prepare needs the API server: while it is away, CDI files are restored and claims unprepared. When the driver ends, all slices
stay as they are, and the next driver takes them over.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pgpu.errors import ClusterError, PgpuError
from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
from pgpu.kubernetes.dra.plugin_registration import KubeletPlugin
from pgpu.kubernetes.node_health import DriverReadiness

REGISTERED = "registered with the kubelet"
SOCKETS = "sockets for the kubelet"
FILES = "CDI files"
SLICES = "slices of held claims"
RUNTIME = "container runtime"
SUBJECTS = (REGISTERED, SOCKETS, FILES, SLICES, RUNTIME)
"""Subjects of the driver's `DriverReadiness`."""

POLL_SECONDS = 1.0
"""A removed socket or CDI file is made again within this time: before the kubelet's next attempt."""

RESTORE_SECONDS = 30.0
"""Between two attempts to restore slices that could not be made after a reboot."""

PATIENCE_SECONDS = 10.0
"""The sockets wait so long for the first restoration."""

CHECK_SECONDS = 1.0
"""Between two attempts to read the node from an API server that is away or refuses; each may consist of several requests."""


class Companion(Protocol):
    """A part that lives as long as the driver, such as the publisher or the HTTP server."""

    def start(self) -> None:
        """Start its threads.

        Raises:
            PgpuError: It cannot start.
        """
        ...

    def registered(self) -> None:
        """Called when the kubelet has accepted the driver, and has deleted its node's ResourceSlices. Must not wait."""
        ...

    def stop(self) -> None:
        """End, and wait for the end."""
        ...


@dataclass
class Driver:
    """One node's DRA driver."""

    preparer: ClaimPreparer
    make_plugin: Callable[[Callable[[str | None], None]], KubeletPlugin]
    """Given the callback for the kubelet's decision."""

    readiness: DriverReadiness
    check_node: Callable[[], None]
    """Refuses a container runtime that would start pods without their slice. Raises PgpuError."""

    companions: Sequence[Companion] = ()
    chores: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """By subject, called at each poll; must not wait."""

    slow_chores: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """By subject, called every 30 s in a thread of their own; may wait."""

    poll_seconds: float = POLL_SECONDS
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends `run`."""

    _refusal: PgpuError | None = field(default=None, init=False, repr=False)

    # Set after the first attempt to restore slices.
    _was_tried: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    # Set after the first success: from then on, CDI files without a held claim are removed.
    _is_restored: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def run(self) -> None:
        """Serve until `stop` is set.

        Raises:
            PgpuError: It cannot start, or the node is refused.
        """
        threading.Thread(target=self._check_node, name="node check", daemon=True).start()
        with contextlib.ExitStack() as stack:
            threading.Thread(target=self._run_slow_chores, name="slow work", daemon=True).start()
            # One slice that cannot be made does not keep the sockets closed: the kubelet must be able to unprepare others.
            self._was_tried.wait(PATIENCE_SECONDS)
            # Companions before the sockets: a registration by the kubelet calls them.
            for companion in self.companions:
                companion.start()
                stack.callback(companion.stop)
            plugin = self.make_plugin(self._on_registration)
            # Errors of the first start end the driver; later ones are only reported.
            plugin.mend()
            stack.callback(plugin.stop)
            while not self.stop.is_set():
                attempt = self.readiness.attempt
                attempt(FILES, lambda: self.preparer.mend(is_complete=self._is_restored.is_set()))
                attempt(SOCKETS, plugin.mend)
                for subject, chore in self.chores.items():
                    attempt(subject, chore)
                self.stop.wait(self.poll_seconds)
        if self._refusal is not None:
            raise self._refusal

    def _check_node(self) -> None:
        while True:
            try:
                self.check_node()
            except ClusterError as exc:
                # Also a refusal (403): an API server that starts refuses every account until it has read its roles.
                self.readiness.set_problem(RUNTIME, str(exc))
            except PgpuError as exc:
                self._refusal = exc
                self.stop.set()
                return
            else:
                self.readiness.set_working(RUNTIME)
                return
            if self.stop.wait(CHECK_SECONDS):
                return

    def _run_slow_chores(self) -> None:
        while True:
            if self.readiness.attempt(SLICES, self.preparer.restore):
                self._is_restored.set()
            self._was_tried.set()
            for subject, chore in self.slow_chores.items():
                self.readiness.attempt(subject, chore)
            # Restored again and again: a slice may fail at first because its GPU is still starting.
            if self.stop.wait(RESTORE_SECONDS):
                return

    def _on_registration(self, refusal: str | None) -> None:
        if refusal is not None:
            self.readiness.set_problem(
                REGISTERED, f"the kubelet refuses this driver, so no pod gets a slice here: {refusal}"
            )
            return
        self.readiness.set_working(REGISTERED)
        for companion in self.companions:
            companion.registered()
