"""The life of the driver on one node: slices and CDI files first, then what the cluster is told, then the kubelet's sockets.

When it ends all slices stay as they are, and whoever comes next takes them over. It refuses to run twice on one node.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pgpu.errors import NodeError, PgpuError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.kubernetes.dra.cdi_files import CdiFiles
from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
from pgpu.kubernetes.dra.plugin_sockets import KubeletPlugin
from pgpu.kubernetes.driver_readiness import Readiness

REGISTERED = "registered with the kubelet"
SOCKETS = "sockets for the kubelet"
FILES = "CDI files"
SLICES = "slices of held claims"
SUBJECTS = (REGISTERED, SOCKETS, FILES, SLICES)
"""What a `Readiness` has to hear of."""

LOOK_SECONDS = 1.0
"""How soon a socket or a CDI file that somebody removed is there again: before a kubelet's next try."""

RESTORE_SECONDS = 30.0
"""How soon a slice that could not be made after a reboot is tried again."""

PATIENCE_SECONDS = 10.0
"""How long the kubelet waits for the first of these."""


class Companion(Protocol):
    """What lives as long as the driver: the publisher, the metrics."""

    def start(self) -> None:
        """Begin, with threads of its own.

        Raises:
            PgpuError: It cannot.
        """
        ...

    def registered(self) -> None:
        """The kubelet took the driver just now, and has wiped its node's slices. Must not wait."""
        ...

    def stop(self) -> None:
        """End, and wait for the end."""
        ...


@dataclass
class Driver:
    """One node's driver."""

    preparer: ClaimPreparer
    make_plugin: Callable[[Callable[[str | None], None]], KubeletPlugin]
    """Given who hears the kubelet's answer."""

    readiness: Readiness
    """Hears of `SUBJECTS`, and tells the operator."""

    companions: Sequence[Companion] = ()
    chores: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What else is done at each look, by subject; must not wait."""

    slow_chores: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What is done now and then, by subject, and may take its time."""

    look_seconds: float = LOOK_SECONDS
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends `run` when it is set."""

    _begun: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    """Slices were tried to be made again."""

    _restored: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    """They were, so that it is known which CDI files are nobody's."""

    def run(self) -> None:
        """Serve until `stop` is set.

        Raises:
            PgpuError: It cannot begin.
        """
        with contextlib.ExitStack() as stack:
            threading.Thread(target=self._work_slowly, name="slow work", daemon=True).start()
            # Nobody waits longer for one slice that cannot be made: the kubelet must be able to take others back.
            self._begun.wait(PATIENCE_SECONDS)
            for companion in self.companions:
                companion.start()
                stack.callback(companion.stop)
            plugin = self.make_plugin(self._heard)
            plugin.start()
            stack.callback(plugin.stop)
            self._look_after(plugin)

    def _work_slowly(self) -> None:
        while True:
            if self._try(SLICES, self.preparer.restore):
                self._restored.set()
            self._begun.set()
            for subject, chore in self.slow_chores.items():
                self._try(subject, chore)
            if self.stop.wait(RESTORE_SECONDS):
                return

    def _look_after(self, plugin: KubeletPlugin) -> None:
        while not self.stop.is_set():
            self._try(FILES, lambda: self.preparer.mend(is_complete=self._restored.is_set()))
            self._try(SOCKETS, plugin.mend)
            for subject, chore in self.chores.items():
                self._try(subject, chore)
            self.stop.wait(self.look_seconds)

    def _try(self, subject: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except PgpuError as exc:
            self.readiness.wrong(subject, f"{exc} ({exc.hint})" if exc.hint else str(exc))
        except Exception as exc:  # noqa: BLE001 - a driver that stopped looking would leave pods hanging
            self.readiness.wrong(subject, f"a bug of pgpu: {exc!r}")
        else:
            self.readiness.right(subject)
            return True
        return False

    def _heard(self, refusal: str | None) -> None:
        if refusal is not None:
            self.readiness.wrong(REGISTERED, f"the kubelet refuses this driver, so no pod gets a slice here: {refusal}")
            return
        self.readiness.right(REGISTERED)
        for companion in self.companions:
            companion.registered()


def look_after_files(files: CdiFiles, readiness: Readiness, stop: threading.Event) -> None:
    """Make CDI files again that are gone, until `stop` is set, where nobody else looks after them."""
    while not stop.is_set():
        try:
            files.mend(is_complete=True)
        except PgpuError as exc:
            readiness.wrong(FILES, str(exc))
        else:
            readiness.right(FILES)
        stop.wait(LOOK_SECONDS)


@contextlib.contextmanager
def alone_on_node(state_directory: Path) -> Iterator[None]:
    """Be the one driver of a node meanwhile.

    Raises:
        NodeError: There is one already.
    """
    path = state_directory / "driver.lock"
    try:
        descriptor = open_lock_file(path)
    except OSError as exc:
        raise NodeError(f"{path} cannot be opened: {exc.strerror}") from exc
    try:
        if not try_flock(descriptor):
            raise NodeError(f"another driver runs on this node ({path})", hint="is its pod still ending?")
        yield
    finally:
        os.close(descriptor)
