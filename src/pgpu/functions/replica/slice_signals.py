"""Hears that the slice is taken (SIGTSTP) and that there is one again (SIGCONT), in the order in which it was said.

The kernel keeps only the later of the two while both are blocked, and one thread takes them off it. Handlers would not do: of
two signals that come together the second's handler interrupts the first's, and what was said last would be heard first.
"""

import asyncio
import signal
import threading
from collections.abc import Callable

_NEWS = frozenset({signal.SIGTSTP, signal.SIGCONT})


def block_slice_signals() -> None:
    """Keep news for `follow()`: in this thread, and in all threads and processes that it starts from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _NEWS)


def follow_slice_signals(
    loop: asyncio.AbstractEventLoop, on_taken: Callable[[], None], on_given: Callable[[], None]
) -> None:
    """Call one of the two on the loop for each piece of news; `hold_back()` was called before any thread was started."""

    def hear() -> None:
        while not loop.is_closed():
            is_taken = signal.sigwait(_NEWS) == signal.SIGTSTP
            try:
                loop.call_soon_threadsafe(on_taken if is_taken else on_given)
            except RuntimeError:  # the loop closed meanwhile: nobody is left to whom it matters
                return

    threading.Thread(target=hear, name="slice-news", daemon=True).start()
