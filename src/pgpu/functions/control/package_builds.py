"""Installation of the packages of pending versions: one version of each owner at a time, so that owners do not delay each other.

An installation is a job that is polled: an installation that hangs occupies no thread. `ControlPlane.build` returns the same
job for a version that is being installed, so a new gateway continues it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pgpu.errors import PgpuError
from pgpu.functions.control.control_plane import ControlPlane
from pgpu.functions.control.control_plane_threads import ControlPlaneThreads
from pgpu.model import Function, Version, VersionState

_POLL_SECONDS = 1.0
"""Between two polls of an installation, which takes seconds at least."""

_log = logging.getLogger(__name__)


class PackageBuilds:
    """Installations for all functions of one gateway."""

    def __init__(
        self,
        control_plane: ControlPlane,
        threads: ControlPlaneThreads,
        on_judged: Callable[[], Coroutine[Any, Any, None]],
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        """Begin with none.

        Args:
            control_plane: Installs packages.
            threads: Calls its methods.
            on_judged: Called after a version was judged.
            poll_seconds: Between two polls of an installation.
        """
        self._control_plane, self._threads, self._on_judged = control_plane, threads, on_judged
        self._poll_seconds = poll_seconds
        self._owners: set[int] = set()
        """Owners with an installation under way."""

        self._attempts: Counter[str] = Counter()
        """By the versions' labels: a version with a failed attempt comes after those without one."""

    def start_pending(self, functions: Sequence[Function]) -> None:
        """Start an installation for each owner with pending versions and none under way."""
        pending = [each for known in functions for each in known.versions if each.state is VersionState.PENDING]
        for version in sorted(pending, key=lambda each: self._attempts[each.label]):
            if version.owner_uid not in self._owners:
                self._owners.add(version.owner_uid)
                self._attempts[version.label] += 1
                self._threads.start(self._build(version))

    async def _build(self, version: Version) -> None:
        call = self._threads.call_strictly
        is_judged = False
        try:
            job_id = await call(self._control_plane.build, version)
            while not await call(self._control_plane.is_built, version, job_id):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(self._poll_seconds)
            is_judged = True
        except PgpuError as error:
            _log.info("the packages of %s cannot be installed now: %s", version.label, error)
        finally:
            # Also after a failure: the next poll of functions tries the owner's versions again.
            self._owners.discard(version.owner_uid)
        if is_judged:
            await self._on_judged()
