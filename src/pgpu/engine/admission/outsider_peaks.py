"""The record of memory outside of slices, one file for each queue in the runtime directory.

Every snapshot of the GPUs is a reading, in whatever process it was taken: the agent takes them while it runs, and a command takes
one for its own round. So an agent that has just started knows what its predecessor saw. The file is written only if a reading
changes the record, which is once in a period while nothing grows; it is lost with a reboot, as all of that directory. Records of
another driver version are void. Two processes that write at one moment lose one of two readings; the next reading has it again.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pgpu.engine.admission.snapshot import Snapshot
from pgpu.host.atomic_file import write_atomically
from pgpu.scheduling.yielding_headroom import OutsiderPeak, first_reading
from pgpu.structs import DecodeError, JsonDecoder, Struct, encode_json


class _GpuRecord(Struct, frozen=True):
    driver_version: str
    peak: OutsiderPeak


_RECORDS = JsonDecoder(dict[str, _GpuRecord])


class OutsiderPeaks:
    """The records of one queue's GPUs."""

    def __init__(self, path: Path, stable_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Name the file; it is read with each reading.

        Args:
            path: Of the file; its directory may be missing.
            stable_seconds: How long memory must not have grown to count as stable.
            clock: The same in all processes of this boot, in seconds.
        """
        self._path = path
        self._stable_seconds = stable_seconds
        self._clock = clock

    def with_reading(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Add one reading of each GPU, and return `OutsiderPeak.stable_bytes` by UUID of those that are stable.

        Nothing is stable if the file cannot be read or has no whole period yet.
        """
        before, after, now_seconds = self._read(), dict[str, _GpuRecord](), self._clock()
        for gpu in snapshot.gpus:
            known, used_bytes = before.get(gpu.uuid), snapshot.outsiders_bytes(gpu.uuid)
            if known is None or known.driver_version != gpu.driver_version:
                peak = first_reading(used_bytes, now_seconds)
            else:
                peak = known.peak.with_reading(used_bytes, now_seconds, self._stable_seconds)
            after[gpu.uuid] = _GpuRecord(gpu.driver_version, peak)
        if after != before:
            with suppress(OSError):  # what is not recorded is not known to be stable
                self._path.parent.mkdir(mode=0o700, exist_ok=True)
                write_atomically(self._path, encode_json(after), 0o600)
        stable = {uuid: record.peak.stable_bytes for uuid, record in after.items()}
        return {uuid: amount for uuid, amount in stable.items() if amount is not None}

    def _read(self) -> Mapping[str, _GpuRecord]:
        try:
            return _RECORDS.decode(self._path.read_bytes())
        except (OSError, DecodeError):
            return {}
