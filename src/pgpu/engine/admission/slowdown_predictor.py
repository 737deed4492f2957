"""Slowdowns of profiled programs beside each other under MPS, for the start rule of a round.

Profiles are read once for each program, and again when one was added. A prediction needs no ledger: a round asks for it while
it decides, and it is kept for the next ones. A set is predicted only if each program has a profile on that model of GPU and its
reading is at hand; `ProfileReadings.keep` computes a missing one after the round. In time slices a profile knows no more than the
demand, which decides there.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import product

from pgpu.advising.advice import Confidence, confidence_in, predict
from pgpu.advising.constants_fit import constants_of, key_of
from pgpu.advising.contention import Constants
from pgpu.advising.needs_estimation import estimate_needs, is_cached
from pgpu.engine.admission.auto_sharing import ProfileReadings
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Call, LedgerView, Waiting
from pgpu.model import Gpu, Job, Profile, SharingMode
from pgpu.structs import Struct, field

MOST_TOGETHER = 3
"""Largest set that is predicted: it takes 1 ms, and five times as long for each job more."""

MOST_KEPT = 10_000
"""Predictions that are kept; all are dropped beyond that."""


class SlowdownPredictor(Struct):
    """Predicts for one engine's GPUs; call `read` in each round before `slowdowns`."""

    readings: ProfileReadings
    calls: frozenset[Call] = frozenset()
    """Those of the rounds so far that have a profile; the same object while nothing changes."""

    _as_of: tuple[int, tuple[Gpu, ...]] = (0, ())
    """Number of the ledger's newest profile, and the GPUs, as of the last round."""

    _read: set[Call] = field(default_factory=set)
    _profiles: dict[tuple[Call, str], Profile] = field(default_factory=dict)
    """By call and model of GPU."""

    _constants: Mapping[str, Constants] = field(default_factory=dict)
    """By UUID."""

    _known: dict[tuple[str, tuple[Call, ...]], Sequence[float]] = field(default_factory=dict)

    def read(self, view: LedgerView, calls: Collection[Call], gpus: Sequence[Gpu]) -> None:
        """Read what the ledger has of calls that were not read yet; one query where it has no profile at all.

        Args:
            view: Of the ledger.
            calls: Of the jobs under MPS; without any, nothing is read.
            gpus: Of the engine.
        """
        if not calls:
            return
        as_of = (view.profiles.newest_number(), tuple(gpus))
        if as_of != self._as_of:
            self._as_of, self.calls = as_of, frozenset()
            self._read, self._profiles, self._known = set(), {}, {}
        unread = set(calls) - self._read if as_of[0] else set()
        self._read |= unread
        for call, name in product(unread, {history_name(gpu) for gpu in gpus}):
            profile = view.profiles.newest(call[0], name, call[1])
            if profile is not None:
                self.readings.recall(view, profile)
                self._profiles[call, name] = profile
        if (calls_now := {call for call, _ in self._profiles}) != self.calls:
            self.calls = frozenset(calls_now)
        if self.calls:
            texts = {gpu.uuid: view.fact(key_of(history_name(gpu), gpu.driver_version)) for gpu in gpus}
            constants = {uuid: Constants() if text is None else constants_of(text) for uuid, text in texts.items()}
            if constants != self._constants:
                self._constants, self._known = constants, {}

    def call_of(self, job: Job | Waiting, mode: SharingMode) -> Call | None:
        """Return a job's call if predictions hold for it: under MPS, with a profile, and all of one GPU's time and memory."""
        call, request = (job.signature, job.owner_uid), job.request
        is_usual = request.gpu_count == 1 and not request.compute_share and not request.oversubscribes
        return call if mode is SharingMode.MPS and is_usual and call in self.calls else None

    def slowdowns(self, gpu_uuid: str, calls: Sequence[Call]) -> Sequence[float] | None:
        """Predict; see `PredictSlowdowns`. None for too many jobs, or where too little is known of one."""
        key = (gpu_uuid, tuple(calls))
        found = self._known.get(key)
        if found is None and (found := self._predict(*key)) is not None:
            if len(self._known) >= MOST_KEPT:
                self._known = {}
            self._known[key] = found
        return found

    def _predict(self, gpu_uuid: str, calls: Sequence[Call]) -> Sequence[float] | None:
        name = next((history_name(gpu) for gpu in self._as_of[1] if gpu.uuid == gpu_uuid), "")
        found = {call: self._profiles.get((call, name)) for call in calls}
        # A reading that was not computed yet, or that newer ones have displaced: the next round reads it again.
        self._read -= {call for call, profile in found.items() if profile is not None and not is_cached(profile)}
        profiles = [profile for call in calls if (profile := found[call]) is not None and is_cached(profile)]
        if len(profiles) < len(calls) or len(calls) > MOST_TOGETHER:
            return None
        if any(confidence_in(estimate_needs(profile)) is Confidence.LOW for profile in profiles):
            return None
        return predict(profiles, SharingMode.MPS, self._constants[gpu_uuid])
