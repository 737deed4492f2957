"""Periodic work of a server: recovery of jobs, the keeper, volumes, and the state of the container engine.

Without a server each command does it in passing. A temporary failure (a full disk, a locked ledger, a container engine that
is down) is retried in the next round; its begin and its end are logged once each.
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Callable

from pgpu.engine.context import EngineContext
from pgpu.engine.keeper.calling import LOOK
from pgpu.engine.keeper.life import LINGER_SECONDS
from pgpu.engine.leases.recovery import recover
from pgpu.errors import PgpuError

_LOG = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0
_DOCKER_SECONDS = 5.0
_KEEPER_CALL_SECONDS = LINGER_SECONDS / 2


class Maintenance:
    """Two daemon threads of one server: one for jobs, one for the container engine."""

    def __init__(self, engine: EngineContext, tidy: Callable[[], None] = lambda: None) -> None:
        """Do not start yet.

        Args:
            engine: Its jobs are recovered.
            tidy: Removes what killed processes left of volumes.
        """
        self._engine = engine
        self._tidy = tidy
        self._is_over = threading.Event()
        self._called_at_seconds = -_KEEPER_CALL_SECONDS
        self._has_docker = False
        self.trouble: str | None = None
        """Why the last round failed, in one line; None if it did not, or before the first one."""

        self.docker_trouble: str | None = None
        """Why no container can be started now; None if one can, or if the extra `docker` is not installed."""

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._repeat, args=(self._recover_jobs, _ROUND_SECONDS), daemon=True).start()
        if importlib.util.find_spec("docker") is not None:
            threading.Thread(target=self._repeat, args=(self._check_docker, _DOCKER_SECONDS), daemon=True).start()

    def stop(self) -> None:
        """Begin no other round."""
        self._is_over.set()

    def _repeat(self, work: Callable[[], None], pause_seconds: float) -> None:
        work()
        while not self._is_over.wait(pause_seconds):
            work()

    def _recover_jobs(self) -> None:
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
        # A keeper exits after some seconds without waiting jobs. The server keeps it alive: it forks a supervisor in a
        # tenth of the time that a new process needs.
        now_seconds = time.monotonic()
        if now_seconds < self._called_at_seconds + _KEEPER_CALL_SECONDS:
            return
        model = self._engine.settings.gpu_model
        if self._engine.keepers.tell(model, LOOK):
            self._called_at_seconds = now_seconds
        else:
            self._engine.keepers.ensure(model)

    def _check_docker(self) -> None:
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
