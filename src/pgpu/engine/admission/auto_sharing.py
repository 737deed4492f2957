"""Chooses between MPS and time slices for jobs with `--sharing auto`, from measured profiles of the jobs that would share.

A process cannot move between the two, so the mode is chosen when a job starts: for an idle GPU or one that is in a mode
already. For one in time slices a job may wait until it is empty (`is_worth_waiting`). Under MPS the choice can be reversed
while jobs run: `watch.mps_verifier` makes them take turns. Time slices, which isolate jobs, are the default wherever a job
cannot be a client, has no profile, or its advice has the confidence `low`. Verdicts of trials, programs that MPS declined and
readings of profiles are facts of the ledger with an age, written outside of rounds and read in them.

Docs: docs/decisions/0028-sharing-mode-auto-start-together-verify-by-turns.md.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pgpu.advising import needs_estimation
from pgpu.advising.advice import Confidence, GpuKind, advise
from pgpu.advising.constants_fit import constants_of, key_of
from pgpu.advising.contention import Constants
from pgpu.advising.needs_estimation import cache_estimate, estimate_needs, is_cached
from pgpu.advising.verification import DEFAULT_RULES, Verdict, Way
from pgpu.digests import sha256
from pgpu.engine.history.run_history import history_name
from pgpu.engine.leases.mps_obstacles import mps_obstacle
from pgpu.ledger import Call, Entry, FactTable, Ledger, LedgerView, Waiting
from pgpu.model import Gpu, Profile, SharingMode, SharingWish
from pgpu.scheduling import GpuRoom
from pgpu.structs import JsonDecoder, Struct, encode_json, field, replace

BELIEVED_SECONDS = 86_400.0
"""For how long a verdict applies; then `advising` decides again."""

KEPT_SECONDS = 30 * 86_400.0
"""For how long a reading is kept; it is computed again after that."""

KEEPING_SECONDS = 0.1
"""For how long a round computes missing readings: the main thread of an agent has other work."""

_VERDICTS, _DECLINED = "sharing-verdict/", "mps-declined/"
"""Prefixes of the facts' keys."""

_VERDICT = JsonDecoder(Verdict)


def verdict_key(gpu: Gpu, signatures: Iterable[str]) -> str:
    """Return the key of the verdict on these programs together."""
    digest = sha256("\n".join(sorted(signatures)).encode(errors="surrogateescape")).hexdigest()[:24]
    return f"{_VERDICTS}{history_name(gpu)}/{gpu.driver_version}/{digest}"


def keep_verdict(facts: FactTable, gpu: Gpu, signatures: Iterable[str], verdict: Verdict) -> None:
    """Store a verdict on programs together for `BELIEVED_SECONDS`."""
    name = verdict_key(gpu, signatures).removeprefix(_VERDICTS)
    facts.put_for(_VERDICTS, name, encode_json(verdict).decode(), BELIEVED_SECONDS)


def verdict_of(view: LedgerView, gpu: Gpu, signatures: Iterable[str]) -> Verdict | None:
    """Return the last verdict on these programs together; None where there is none."""
    text = view.fact(verdict_key(gpu, signatures))
    return None if text is None else _VERDICT.decode(text)


def keep_declined(facts: FactTable, signature: str, owner_uid: int) -> None:
    """Store that a user's program could not become a client of MPS; it is not tried again for `BELIEVED_SECONDS`."""
    facts.put_for(_DECLINED, f"{owner_uid}/{signature}", str(time.time()), BELIEVED_SECONDS)


def was_declined(view: LedgerView, signature: str, owner_uid: int) -> bool:
    """Whether a user's program could not become a client of MPS lately."""
    text = view.fact(f"{_DECLINED}{owner_uid}/{signature}") if signature else None
    return text is not None and time.time() - float(text) < BELIEVED_SECONDS


class ProfileReadings(Struct):
    """Readings of profiles, shared between processes through the ledger.

    Reading a profile with antagonist runs takes tenths of a second of a core; inside a transaction this would block every
    other writer.
    """

    _unkept: dict[str, Profile] = field(default_factory=dict)
    """Profiles of which the ledger has no reading yet, by name."""

    def recall(self, view: LedgerView, profile: Profile) -> None:
        """Load a profile's reading from the ledger; where there is none, `keep` stores it later."""
        if is_cached(profile):
            return
        name = needs_estimation.name_of(profile)
        text = view.fact(needs_estimation.PREFIX + name)
        reading = None if text is None else needs_estimation.estimate_of(text)
        if reading is None:
            self._unkept[name] = profile
        else:
            cache_estimate(profile, reading)

    def keep(self, facts: FactTable, longest_seconds: float = KEEPING_SECONDS) -> None:
        """Compute and store missing readings; never inside a transaction.

        Args:
            facts: Of the ledger.
            longest_seconds: No other one is begun after so long; the next call goes on.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        until_seconds = time.monotonic() + longest_seconds
        for name, profile in list(self._unkept.items()):
            facts.put_for(
                needs_estimation.PREFIX, name, needs_estimation.text_of(estimate_needs(profile)), KEPT_SECONDS
            )
            self._unkept.pop(name, None)
            if time.monotonic() >= until_seconds:
                return

    def prepare(self, ledger: Ledger, gpus: Sequence[Gpu], calls: Collection[Call]) -> None:
        """Load or compute the readings of these calls' profiles on these GPUs, before a transaction that needs them.

        Raises:
            LedgerError: The ledger cannot be used.
        """
        with ledger.view() as view:
            for signature, owner_uid in calls if view.profiles.newest_number() else ():
                for name in {history_name(gpu) for gpu in gpus} if signature else ():
                    profile = view.profiles.newest(signature, name, owner_uid)
                    if profile is not None:
                        self.recall(view, profile)
        self.keep(ledger.facts, math.inf)


_MOST_BESIDE = 3
"""How many waiting jobs of the same user count as future company on an idle GPU. Without any, another job like itself does:
alone it runs under MPS as fast as without, and later jobs may join it."""


class _Tenant(Struct, frozen=True):
    """A program on, or for, a GPU."""

    signature: str
    owner_uid: int


class _Place(Struct, frozen=True):
    """A GPU on which a client of MPS may start, now or once it is empty."""

    gpu: Gpu
    free_bytes: int
    there: tuple[_Tenant, ...]
    wait_seconds: float = 0.0
    """Expected time until its present jobs have ended."""

    free_now_bytes: int = 0
    """Memory that a job could have now, in time slices."""


class AutoSharing(Struct):
    """Chooses the sharing mode for one engine; its caches hold what one round reads."""

    has_mps: bool
    readings: ProfileReadings = field(default_factory=ProfileReadings)
    is_choosing: bool = False
    """True if a waiting job had `--sharing auto` in the last round: the next one may read profiles."""

    _known: dict[tuple[str, str, int], Profile | None] = field(default_factory=dict)
    _judged: dict[tuple[str, tuple[_Tenant, ...]], float | None] = field(default_factory=dict)
    """Speed-up of programs together on a GPU over turns; None where MPS does not pay."""

    _sliced: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """Seconds for which programs ran in time slices."""

    _declined: dict[tuple[str, int], bool] = field(default_factory=dict)
    _ways: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Runtime and user of waiting jobs by id, kept between rounds: they never change."""

    now_seconds: Callable[[], float] = time.monotonic
    _passed_up_at_seconds: dict[str, float] = field(default_factory=dict)
    """Since when a job waits for MPS although it could have started in time slices, by id. Lost with this process."""

    def choose_modes(
        self,
        view: LedgerView,
        rooms: Sequence[GpuRoom],
        waiting: Sequence[Waiting],
        holding: Sequence[Entry],
        lasting: Mapping[Call, float],
    ) -> Sequence[Waiting]:
        """Return the waiting jobs, those with `--sharing auto` with the mode in which they should start.

        Args:
            view: Of the ledger.
            rooms: Of the open GPUs.
            waiting: Oldest first.
            holding: Every job that holds slices.
            lasting: Usual durations of calls in seconds.
        """
        # A parked job returns in time slices, in which it began.
        undecided = [each for each in waiting if each.request.sharing is SharingWish.AUTO and each.gpu_uuid is None]
        self.is_choosing = bool(undecided) and self.has_mps
        if not self.is_choosing:
            return waiting
        # Emptied each round: other processes write profiles and verdicts meanwhile.
        self._known, self._judged, self._sliced, self._declined = {}, {}, {}, {}
        passed_up = self._passed_up_at_seconds
        self._passed_up_at_seconds = {
            each.job_id: passed_up[each.job_id] for each in undecided if each.job_id in passed_up
        }
        clients = self._possible_clients(view, undecided)
        # Of each user the first `_MOST_BESIDE` + 1 jobs: one of them may be the job itself.
        company: dict[int, list[Waiting]] = {}
        for each in clients:
            own = company.setdefault(each.owner_uid, [])
            if len(own) <= _MOST_BESIDE:
                own.append(each)
        now, later = _places(rooms, holding, lasting, time.time())
        under_mps = set()
        for each in clients:
            beside = [_tenant(other) for other in company[each.owner_uid] if other.job_id != each.job_id][:_MOST_BESIDE]
            if self._gains_under_mps(view, now, each, beside) or self._should_wait(view, later, each, beside, lasting):
                under_mps.add(each.job_id)
        modes = {
            each.job_id: SharingWish.MPS if each.job_id in under_mps else SharingWish.TIME_SLICE for each in undecided
        }
        return [
            replace(each, request=replace(each.request, sharing=modes[each.job_id])) if each.job_id in modes else each
            for each in waiting
        ]

    def _possible_clients(self, view: LedgerView, undecided: Sequence[Waiting]) -> Sequence[Waiting]:
        # A user set by an image is known only when its container starts: a job that turns out to be no client then is
        # declined once, which is remembered.
        fitting = [each for each in undecided if each.request.gpu_count == 1 and not each.request.oversubscribes]
        before = self._ways
        found = view.ways_to_run([each.job_id for each in fitting if each.job_id not in before])
        self._ways = {each.job_id: before.get(each.job_id) or found[each.job_id] for each in fitting}
        able = []
        for each in fitting:
            call = (each.signature, each.owner_uid)
            if mps_obstacle(*self._ways[each.job_id]) is None:
                if call not in self._declined:
                    self._declined[call] = was_declined(view, *call)
                if not self._declined[call]:
                    able.append(each)
        return able

    def _gains_under_mps(
        self, view: LedgerView, places: Sequence[_Place], job: Waiting, beside: Sequence[_Tenant]
    ) -> bool:
        own = _tenant(job)
        return any(
            self._gain(view, place.gpu, (own, *(place.there or beside or (own,)))) is not None
            for place in places
            if place.free_bytes >= job.request.memory_bytes
            and all(each.owner_uid == job.owner_uid for each in place.there)
        )

    def _should_wait(
        self,
        view: LedgerView,
        places: Sequence[_Place],
        job: Waiting,
        beside: Sequence[_Tenant],
        lasting: Mapping[Call, float],
    ) -> bool:
        """Whether a job should wait for a GPU in time slices to become empty; never a job with a deadline."""
        own, own_seconds = _tenant(job), lasting.get((job.signature, job.owner_uid))
        if own_seconds is None or job.wait_deadline_seconds is not None:
            return False
        now_seconds = self.now_seconds()
        waited_seconds = now_seconds - self._passed_up_at_seconds.get(job.job_id, now_seconds)
        for place in places:
            if place.free_bytes < job.request.memory_bytes or place.wait_seconds > own_seconds:
                continue
            gain = self._gain(view, place.gpu, (own, *(beside or (own,))))
            if gain is not None and is_worth_waiting(
                place.wait_seconds, own_seconds, self._sliced_seconds(view, place.gpu, own), gain, waited_seconds
            ):
                if any(each.free_now_bytes >= job.request.memory_bytes for each in places):
                    self._passed_up_at_seconds.setdefault(job.job_id, now_seconds)
                return True
        return False

    def _sliced_seconds(self, view: LedgerView, gpu: Gpu, tenant: _Tenant) -> float:
        key = (tenant.signature, history_name(gpu), tenant.owner_uid)
        if key not in self._sliced:
            self._sliced[key] = view.history.sliced_seconds((tenant.signature, tenant.owner_uid), key[1])
        return self._sliced[key]

    def _gain(self, view: LedgerView, gpu: Gpu, tenants: tuple[_Tenant, ...]) -> float | None:
        key = (gpu.uuid, tenants)
        if key not in self._judged:
            self._judged[key] = self._judge(view, gpu, tenants)
        return self._judged[key]

    def _judge(self, view: LedgerView, gpu: Gpu, tenants: Sequence[_Tenant]) -> float | None:
        # A measured verdict overrides the prediction from profiles.
        verdict = verdict_of(view, gpu, [each.signature for each in tenants])
        if verdict is not None and time.time() - verdict.at_seconds < BELIEVED_SECONDS:
            return verdict.gain if verdict.way is Way.TOGETHER else None
        profiles = [self._profile(view, gpu, each) for each in tenants]
        known = [profile for profile in profiles if profile is not None]
        if len(known) < len(profiles):
            return None
        kind = GpuKind(history_name(gpu), gpu.compute_capability, is_instance=gpu.is_instance)
        calibrated = view.fact(key_of(kind.name, gpu.driver_version))
        found = advise(known, kind, constants=Constants() if calibrated is None else constants_of(calibrated))
        is_enough = found.gain >= DEFAULT_RULES.least_gain  # the verifier would reverse a smaller gain
        is_advised = found.mode is SharingMode.MPS and found.confidence is not Confidence.LOW
        return found.gain if is_advised and is_enough else None

    def _profile(self, view: LedgerView, gpu: Gpu, tenant: _Tenant) -> Profile | None:
        key = (tenant.signature, history_name(gpu), tenant.owner_uid)
        if key not in self._known:
            found = view.profiles.newest(*key) if tenant.signature else None
            if found is not None:
                self.readings.recall(view, found)
            self._known[key] = found
        return self._known[key]


# Rent or buy: a GPU changes its mode only once it is empty. A job that starts there in time slices delays the change for all
# later jobs; a job that waits pays for them. It waits once its own gain and what its program has lost in time slices since
# it last ran under MPS come to as much as the wait. A stream of jobs then reaches the better mode whatever their order, at no
# more than twice the cost of a decision that knows the future.


def is_worth_waiting(
    wait_seconds: float, own_seconds: float, sliced_seconds: float, gain: float, waited_seconds: float = 0.0
) -> bool:
    """Whether a job should wait for MPS; never longer than it runs itself.

    Args:
        wait_seconds: Until the GPU is probably empty; infinity where that is unknown.
        own_seconds: Usual duration of the job.
        sliced_seconds: For how long its program ran in time slices beside others since it last ran under MPS.
        gain: Speed-up under MPS, above 1.
        waited_seconds: For how long it has waited although it could have started in time slices; jobs that arrive
            meanwhile can delay the change again and again.

    Source: Karlin, Manasse, Rudolph and Sleator, *Competitive Snoopy Caching* (Algorithmica 1988).
    Docs: docs/decisions/0033-waiting-for-sharing-mode-as-long-as-it-pays.md.
    """
    saved_seconds = (own_seconds + sliced_seconds) * (1 - 1 / gain)
    return waited_seconds + wait_seconds <= min(own_seconds, saved_seconds)


def empty_in_seconds(there: Iterable[Entry], lasting: Mapping[Call, float], now_seconds: float) -> float:
    """Return the expected time until the last of these jobs ends; infinity if one's duration is unknown.

    Args:
        there: Jobs on one GPU.
        lasting: Usual durations of calls in seconds.
        now_seconds: Seconds since the epoch.
    """
    latest_seconds = 0.0
    for job in (entry.job for entry in there):
        usual_seconds = lasting.get((job.signature, job.owner_uid)) if job.signature else None
        if usual_seconds is None:
            return math.inf
        since_seconds = job.started_at_seconds or (job.lease.granted_at_seconds if job.lease else now_seconds)
        # abs: an overdue job is expected to run on for as long as it is overdue.
        latest_seconds = max(latest_seconds, abs(usual_seconds - max(0.0, now_seconds - since_seconds)))
    return latest_seconds


def _places(
    rooms: Sequence[GpuRoom], holding: Sequence[Entry], lasting: Mapping[Call, float], now_seconds: float
) -> tuple[list[_Place], list[_Place]]:
    # Idle GPUs and those under MPS as they are now; those in time slices as they will be once empty, the soonest first.
    now, later = [], []
    for room in rooms:
        there = [
            each
            for each in holding
            if each.is_lease_held
            and each.job.lease is not None
            and room.gpu.uuid in {part.gpu_uuid for part in each.job.lease.slices}
        ]
        if room.tenancy.mode in {None, SharingMode.MPS}:
            tenants = tuple(_Tenant(each.job.signature, each.job.owner_uid) for each in there)
            now.append(_Place(room.gpu, room.free_bytes, tenants))
        elif room.tenancy.mode is SharingMode.TIME_SLICE:
            wait_seconds = empty_in_seconds(there, lasting, now_seconds)
            later.append(_Place(room.gpu, room.capacity_bytes, (), wait_seconds, room.free_bytes))
    return now, sorted(later, key=lambda place: place.wait_seconds)


def _tenant(job: Waiting) -> _Tenant:
    return _Tenant(job.signature, job.owner_uid)
