"""Engines of one ledger, one for each kind of GPU.

A server grants its own GPUs and, where those are simulated, any other simulated GPUs on request. Jobs of all kinds share
the ledger, so a service finds the engine of a job by the job's GPU model. `SharedComputation` coalesces concurrent
forecasts of one queue.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from pgpu.engine.engine import Engine
from pgpu.engine.settings import EngineSettings
from pgpu.errors import RequestError
from pgpu.model import Job

if TYPE_CHECKING:
    from pgpu.engine.admission.rounds import RoundOutcome

T = TypeVar("T")

_MOST_MODELS = 16


class SharedComputation(Generic[T]):
    """One computation shared by threads: a caller gets the result of a run that began after its call.

    Threads that arrive during a run wait for the lock; the first of them runs again for all that have arrived by then.
    """

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._running = threading.Lock()
        self._guard = threading.Lock()
        self.asked = 0
        """Number of calls so far."""

        self._newest: tuple[int, T] | None = None

    def answer(self) -> T:
        """Return the result of a run that began after this call; an exception reaches only the thread that ran it."""
        with self._guard:
            self.asked += 1
            place = self.asked
        with self._running:
            # A run serves every call counted before it began.
            if self._newest is None or self._newest[0] < place:
                asked_before = self.asked
                self._newest = asked_before, self._compute()
            return self._newest[1]


class EnginePool:
    """The engine of this process's GPUs, and those of other GPU models on the same ledger."""

    def __init__(
        self, engine: Engine, engine_of: Callable[[str | None], Engine] | None = None, *, is_server: bool = False
    ) -> None:
        """Keep one engine, and make others on demand.

        Args:
            engine: Grants this process's GPUs.
            engine_of: Makes the engine of another `EngineSettings.gpu_model`; None where there are no others.
            is_server: Whether other users choose the GPU models: those are simulated then, and limited in number.
        """
        self.own = engine
        self._engine_of = engine_of
        self._is_server = is_server
        self._others: dict[str | None, Engine] = {}
        self._guard = threading.Lock()
        self._outlooks: dict[str | None, SharedComputation[RoundOutcome]] = {}

    def simulated(self, model: str | None) -> Engine:
        """Return the engine of some simulated GPUs; None stands for this process's own GPUs.

        Raises:
            RequestError: This server has real GPUs, or simulates too many models already.
        """
        own_model = self.own.settings.gpu_model
        if model is None or model == own_model:
            return self.own
        if self._engine_of is None or own_model is None:
            raise RequestError(
                "this server grants real GPUs and simulates none", hint="PGPU_HOST=embedded uses no server"
            )
        with self._guard:
            if model not in self._others and len(self._others) >= _MOST_MODELS:
                raise RequestError("this server simulates too many kinds of GPUs already")
            if model not in self._others:
                # Two spellings of the own model are one engine: two would hold its GPUs' locks twice.
                made = self._engine_of(model)
                self._others[model] = self.own if made.settings.gpu_model == own_model else made
            return self._others[model]

    def apply(self, change: Callable[[EngineSettings], EngineSettings]) -> None:
        """Change the settings of all engines, for decisions that begin from now on."""
        for engine in self.all():
            engine.apply(change(engine.settings))
        with self._guard:
            self._outlooks.clear()

    def all(self) -> list[Engine]:
        """Return the engines that were made so far."""
        with self._guard:
            return [self.own, *(each for each in self._others.values() if each is not self.own)]

    def of_job(self, job: Job) -> Engine:
        """Return the engine that grants a job's GPUs.

        Raises:
            RequestError: As of `simulated`, on a server.
        """
        if self._is_server:
            return self.simulated(job.gpu_model)
        if self._engine_of is None or job.gpu_model == self.own.settings.gpu_model:
            return self.own
        return self._engine_of(job.gpu_model)

    def outlook_of(self, job: Job) -> "RoundOutcome":
        """Return the forecast of a job's queue; concurrent callers share one computation."""
        engine = self.of_job(job)
        # The lock is held for the dictionary only; the forecast itself runs outside of it.
        with self._guard:
            shared = self._outlooks.setdefault(engine.settings.gpu_model, SharedComputation(engine.admissions.outlook))
        return shared.answer()
