"""Sees to the packages of versions that wait for them: of each owner one version at a time, so that nobody waits for another's.

An installation is a job, looked at now and then: however many hang, no thread is held by them. It refuses to remember: who
asks for one that is under way is given that one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from pgpu.errors import PgpuError
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.control_plane import ControlPlane
from pgpu.model import Function, Version, VersionState

_LOOK_SECONDS = 1.0
"""Between two looks at an installation, which takes seconds at least."""


class InThread(Protocol):
    """Runs what blocks."""

    async def __call__(self, ask: Callable[..., Any], *words: Any) -> Any:
        """Wait for it without blocking."""


class PackageBuilds:
    """Of all functions of one gateway."""

    def __init__(
        self,
        desk: ControlPlane,
        in_thread: InThread,
        do: Callable[[Coroutine[Any, Any, None]], None],
        on_judged: Callable[[], Coroutine[Any, Any, None]],
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Begin with nothing.

        Args:
            desk: Has packages installed.
            in_thread: Runs its methods.
            do: Has something done beside everything else.
            on_judged: What is done once a version was judged.
            look_seconds: Between two looks at an installation.
        """
        self._desk, self._in_thread, self._do, self._on_judged = desk, in_thread, do, on_judged
        self._look_seconds = look_seconds
        self._owners: set[int] = set()
        """Those of whom something is being installed."""

        self._tries: Counter[str] = Counter()
        """By the versions' labels: what could not be seen to goes behind what was not tried yet."""

    def see_to(self, functions: Sequence[Function]) -> None:
        """Begin what waits; of an owner the next one once the last one was judged."""
        pending = [each for known in functions for each in known.versions if each.state is VersionState.PENDING]
        for version in sorted(pending, key=lambda each: self._tries[each.label]):
            if version.owner_uid not in self._owners:
                self._owners.add(version.owner_uid)
                self._tries[version.label] += 1
                self._do(self._built(version))

    async def _built(self, version: Version) -> None:
        is_judged = False
        try:
            job_id = await self._in_thread(self._desk.build, version)
            while not await self._in_thread(self._desk.is_built, version, job_id):  # noqa: ASYNC110 - no event of ours tells
                await asyncio.sleep(self._look_seconds)
            is_judged = True
        except PgpuError as error:
            log(f"the packages of {version.label} cannot be seen to: {error}")
        finally:
            self._owners.discard(version.owner_uid)
        if is_judged:
            await self._on_judged()
