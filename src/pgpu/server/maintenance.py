"""What a server does without being asked: it looks after jobs that nobody looks after, and at what they need.

A command of a user did the same in passing; where a server is, there may be none for hours. Whatever refuses for a while
(a full disk, a locked ledger, a container engine that is away) is tried again and ends nothing; the server's log says once
that it began, and once that it is over. Nothing is decided here: `recover` and the keeper do.
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Callable

from pgpu.engine.engine import Engine
from pgpu.engine.keeper.calling import LOOK
from pgpu.engine.keeper.life import LINGER_SECONDS
from pgpu.engine.leases.recovery import recover
from pgpu.errors import PgpuError

_LOG = logging.getLogger(__name__)


_ROUND_SECONDS = 1.0
_DOCKER_SECONDS = 5.0
_CALL_SECONDS = LINGER_SECONDS / 2


class Maintenance:
    """The rounds of one server."""

    def __init__(self, engine: Engine, tidy: Callable[[], None] = lambda: None) -> None:
        """Do not begin yet.

        Args:
            engine: Whose jobs are looked after.
            tidy: Takes away what killed processes left of volumes.
        """
        self._engine = engine
        self._tidy = tidy
        self._is_over = threading.Event()
        self._called_at_seconds = -_CALL_SECONDS
        self._has_docker = False
        self.trouble: str | None = None
        """Why the last round failed, in one line; None if it did not, or there was none yet."""

        self.docker_trouble: str | None = None
        """Why containers cannot be started now; None if they can, or where there is no container engine to ask."""

    def start(self) -> None:
        """Go round from now on, in threads that nobody waits for."""
        threading.Thread(target=self._go_round, args=(self._look_after, _ROUND_SECONDS), daemon=True).start()
        if importlib.util.find_spec("docker") is not None:
            threading.Thread(target=self._go_round, args=(self._look_at_docker, _DOCKER_SECONDS), daemon=True).start()

    def stop(self) -> None:
        """Begin no other round."""
        self._is_over.set()

    def _go_round(self, look: Callable[[], None], pause_seconds: float) -> None:
        look()
        while not self._is_over.wait(pause_seconds):
            look()

    def _look_after(self) -> None:
        before = self.trouble
        try:
            recover(self._engine)
            self._keep_keeper()
            self.trouble = None
        except PgpuError as exc:
            self.trouble = str(exc)
            if before is None:
                _LOG.warning(f"pgpu: not ready: {exc}" + (f"\npgpu: hint: {exc.hint}" if exc.hint else ""))
        if before is not None and self.trouble is None:
            _LOG.warning("pgpu: ready again")

    def _keep_keeper(self) -> None:
        """Have the keeper stay although nothing waits: it forks a supervisor in a tenth of the time that one starts in."""
        now_seconds = time.monotonic()
        if now_seconds < self._called_at_seconds + _CALL_SECONDS:
            return
        model = self._engine.settings.gpu_model
        if self._engine.keepers.tell(model, LOOK):
            self._called_at_seconds = now_seconds
        else:
            self._engine.keepers.ensure(model)

    def _look_at_docker(self) -> None:
        from pgpu.runtimes.docker.engine import Engine as DockerEngine  # noqa: PLC0415 - an extra of pgpu
        from pgpu.runtimes.docker.engine import engine_url  # noqa: PLC0415 - likewise

        self._tidy()
        try:
            with DockerEngine(engine_url()) as engine:
                engine.version()
            if self.docker_trouble is not None and self._has_docker:
                _LOG.warning("pgpu: the container engine answers again")
            self.docker_trouble, self._has_docker = None, True
        except PgpuError as exc:
            if self.docker_trouble is None and self._has_docker:
                _LOG.warning(f"pgpu: no container can be started: {exc}")
            self.docker_trouble = str(exc)
