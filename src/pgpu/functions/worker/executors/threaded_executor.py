"""The lane of a handler that may be called from several threads at once.

The main thread reads the socket, so cancellations are seen while handlers run. It refuses to add threads of its own
accord: the function says how many its code stands.
"""

import queue
import threading

from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.started_mark import StartedMark
from pgpu.functions.worker.call_codec import CallCodec
from pgpu.functions.worker.executors.call_inbox import WorkItem
from pgpu.functions.worker.executors.single_executor import SingleExecutor
from pgpu.functions.worker.executors.worker_commands import run_commands
from pgpu.functions.worker.shutdown import ShutdownSignal


class ThreadedExecutor(SingleExecutor):
    """Serves the calls of one port in a fixed number of threads."""

    def __init__(
        self, port: BlockingChannel, mark: StartedMark, answerer: CallCodec, leave: ShutdownSignal, concurrency: int
    ) -> None:
        super().__init__(port, mark, answerer, leave)
        self._waiting: queue.SimpleQueue[WorkItem | None] = queue.SimpleQueue()
        self._beginning = threading.Lock()
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(concurrency)]

    def serve(self) -> None:
        """Serve until the front leaves or says so; what was begun is finished."""
        for thread in self._threads:
            thread.start()
        inbox = self._inbox
        while not (self._leave.is_asked or self._port.is_ended):
            self._leave.wait(self._read)
            while inbox.calls:
                self._waiting.put(inbox.calls.popleft())
            if inbox.questions:
                run_commands(self._port, inbox, self._answerer.handler, self._leave)
            with self._news:
                self._news.notify_all()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        serve = self._serving()
        while (work := self._waiting.get()) is not None:
            try:
                serve(work)
                self._port.flush()
            except GoneError:
                return  # the main thread reads that nobody is there

    def _begin(self, work: WorkItem) -> None:
        with self._beginning:
            self._mark.begin(max(work.number, self._mark.last_begun))

    def _look(self, now_seconds: float) -> None:
        """Nothing: the main thread reads, and replies leave at once."""

    def _look_now(self) -> None:
        """Nothing: the main thread reads."""

    def _is_cancelled(self, work: WorkItem) -> bool:
        return work.is_cancelled

    def _wait_for_front(self) -> None:
        with self._news:
            self._news.wait(timeout=1.0)
        if self._port.is_ended:
            raise GoneError("the front has left")
