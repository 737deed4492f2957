"""In which mode a job with `--sharing auto` starts: what is measured of it and of those beside it says so.

A running process cannot be moved between MPS and time slices, so the mode is chosen where a job starts, for a GPU that is idle
or in a mode already; for one in time slices a job may wait until it is empty (`changing_mode`). Under MPS the choice can be taken
back while jobs run: they take turns then (`verifying`). Who could be no client, of whom nothing is known, or of whom no more than
their launches tell (confidence `low`), takes time slices, which keep jobs apart. It refuses to grant: admission does.

Docs: docs/decisions/0028-sharing-mode-auto-start-together-verify-by-turns.md.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pgpu.advising.advice import Confidence, GpuKind, advise
from pgpu.advising.constants_fit import constants_of, key_of
from pgpu.advising.contention import Constants
from pgpu.advising.verification import DEFAULT_RULES, Verdict, Way
from pgpu.engine.admission.mode_switch import empty_in_seconds, is_worth_waiting
from pgpu.engine.admission.profile_readings import ProfileReadings
from pgpu.engine.history.run_history import history_name
from pgpu.engine.leases.mps_sharing import mps_obstacle
from pgpu.ledger import Call, Entry, Facts, View, Waiting
from pgpu.model import Gpu, Profile, SharingMode, SharingWish
from pgpu.scheduling import GpuRoom

BELIEVED_SECONDS = 86_400.0
"""A verdict that programs are better off in turns keeps them from MPS for a day; then advice is asked again."""

_VERDICTS, _DECLINED = "sharing-verdict/", "mps-declined/"
"""What the keys of these facts begin with."""

_MOST_BESIDE = 3
"""So many who wait are taken for company to come, where a GPU is idle; where nobody does, another like itself: alone it
runs under MPS as it would without, and whoever comes later may join it."""


@dataclass(frozen=True, slots=True)
class _Tenant:
    """Who would share a GPU."""

    signature: str
    owner_uid: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A GPU that a client of MPS may start on."""

    gpu: Gpu
    free_bytes: int
    there: tuple[_Tenant, ...]
    wait_seconds: float = 0.0
    """Until it probably is; then whoever is there now has left."""

    free_now_bytes: int = 0
    """Of one in time slices: what a job could have at once, in time slices."""


@dataclass(slots=True)
class AutoSharing:
    """Chooses for one engine."""

    has_mps: bool
    readings: ProfileReadings = field(default_factory=ProfileReadings)
    _known: dict[tuple[str, str, int], Profile | None] = field(default_factory=dict)
    """Profiles read in this round."""

    _judged: dict[tuple[str, tuple[_Tenant, ...]], float | None] = field(default_factory=dict)
    """How many times faster some are together on a GPU than in turns, as found in this round; None where they are not."""

    _sliced: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """For how many seconds programs took turns, as read in this round."""

    _declined: dict[tuple[str, int], bool] = field(default_factory=dict)
    """Which users' programs could be no clients lately, as read in this round."""

    _ways: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Runtime and user of jobs that wait, by id; they never change."""

    now_seconds: Callable[[], float] = time.monotonic
    _passed_up_at_seconds: dict[str, float] = field(default_factory=dict)
    """Since when jobs wait for MPS that could have started in time slices, by id. Whoever keeps the queue next begins anew."""

    def shared(
        self,
        view: View,
        rooms: Sequence[GpuRoom],
        waiting: Sequence[Waiting],
        holding: Sequence[Entry],
        lasting: Mapping[Call, float],
    ) -> Sequence[Waiting]:
        """Return the waiting jobs, those that leave their mode to pgpu with the mode that they should start in.

        Args:
            view: Of the ledger.
            rooms: On which something may start.
            waiting: Oldest first.
            holding: Every job that holds slices.
            lasting: How long calls usually last, in seconds.
        """
        undecided = [each for each in waiting if each.request.sharing is SharingWish.AUTO]
        if not undecided or not self.has_mps:
            return waiting
        self._known, self._judged, self._sliced, self._declined = {}, {}, {}, {}
        self._forget({each.job_id for each in undecided})
        clients = self._possible_clients(view, undecided)
        first = _first_of_each_owner(clients)
        now, later = _places(rooms, holding), _later_places(rooms, holding, lasting, time.time())
        under_mps = set()
        for each in clients:
            beside = [_tenant(other) for other in first[each.owner_uid] if other.job_id != each.job_id][:_MOST_BESIDE]
            belongs = self._belongs(view, now, each, beside)
            if belongs or self._waits(view, later, each, beside, lasting):
                under_mps.add(each.job_id)
        return [_with_mode(each, under_mps) if each.request.sharing is SharingWish.AUTO else each for each in waiting]

    def _possible_clients(self, view: View, undecided: Sequence[Waiting]) -> Sequence[Waiting]:
        """The user that an image itself names, only its container's start tells: who is no client then is told apart once."""
        fitting = [each for each in undecided if each.request.gpu_count == 1 and not each.request.oversubscribes]
        before = self._ways
        found = view.ways_to_run([each.job_id for each in fitting if each.job_id not in before])
        self._ways = {each.job_id: before.get(each.job_id) or found[each.job_id] for each in fitting}
        able = [each for each in fitting if mps_obstacle(*self._ways[each.job_id]) is None]
        return [each for each in able if not self._was_declined(view, each)]

    def _was_declined(self, view: View, job: Waiting) -> bool:
        key = (job.signature, job.owner_uid)
        if key not in self._declined:
            kept = view.fact(declined_key(*key)) if job.signature else None
            self._declined[key] = kept is not None and time.time() - float(kept) < BELIEVED_SECONDS
        return self._declined[key]

    def _belongs(self, view: View, places: Sequence[_Place], job: Waiting, beside: Sequence[_Tenant]) -> bool:
        """Whether there is a GPU on which a job is better off under MPS than in turns."""
        own = _tenant(job)
        return any(
            self._gain(view, place.gpu, (own, *(place.there or beside or (own,)))) is not None
            for place in places
            if place.free_bytes >= job.request.memory_bytes
            and all(each.owner_uid == job.owner_uid for each in place.there)
        )

    def _waits(
        self,
        view: View,
        places: Sequence[_Place],
        job: Waiting,
        beside: Sequence[_Tenant],
        lasting: Mapping[Call, float],
    ) -> bool:
        """Whether a job should wait for one of the GPUs that are in time slices; never one that may wait only for so long."""
        own, own_seconds = _tenant(job), lasting.get((job.signature, job.owner_uid))
        if own_seconds is None or job.wait_deadline_seconds is not None:
            return False
        now_seconds = self.now_seconds()
        waited_seconds = now_seconds - self._passed_up_at_seconds.get(job.job_id, now_seconds)
        for place in places:
            if place.free_bytes >= job.request.memory_bytes and place.wait_seconds <= own_seconds:
                gain = self._gain(view, place.gpu, (own, *(beside or (own,))))
                sliced_seconds = self._sliced_seconds(view, place.gpu, own)
                if gain is not None and is_worth_waiting(
                    place.wait_seconds, own_seconds, sliced_seconds, gain, waited_seconds
                ):
                    if any(each.free_now_bytes >= job.request.memory_bytes for each in places):
                        self._passed_up_at_seconds.setdefault(job.job_id, now_seconds)
                    return True
        return False

    def _forget(self, waiting: Collection[str]) -> None:
        """Keep only of those that wait since when they do."""
        known = self._passed_up_at_seconds
        self._passed_up_at_seconds = {job_id: known[job_id] for job_id in known.keys() & waiting}

    def _gain(self, view: View, gpu: Gpu, tenants: tuple[_Tenant, ...]) -> float | None:
        key = (gpu.uuid, tenants)
        if key not in self._judged:
            self._judged[key] = self._judge(view, gpu, tenants)
        return self._judged[key]

    def _sliced_seconds(self, view: View, gpu: Gpu, tenant: _Tenant) -> float:
        key = (tenant.signature, history_name(gpu), tenant.owner_uid)
        if key not in self._sliced:
            self._sliced[key] = view.history.sliced_seconds((tenant.signature, tenant.owner_uid), key[1])
        return self._sliced[key]

    def _judge(self, view: View, gpu: Gpu, tenants: Sequence[_Tenant]) -> float | None:
        verdict = verdict_of(view, gpu, [each.signature for each in tenants])
        if verdict is not None and time.time() - verdict.at_seconds < BELIEVED_SECONDS:
            return verdict.gain if verdict.way is Way.TOGETHER else None
        profiles = [self._profile(view, gpu, each) for each in tenants]
        if any(profile is None for profile in profiles):
            return None
        kind = GpuKind(history_name(gpu), gpu.compute_capability, is_instance=gpu.is_instance)
        known = [profile for profile in profiles if profile is not None]
        found = advise(known, kind, constants=constants_in(view, gpu))
        is_enough = found.gain >= DEFAULT_RULES.least_gain  # Less would be taken back once it was seen.
        is_advised = found.mode is SharingMode.MPS and found.confidence is not Confidence.LOW
        return found.gain if is_advised and is_enough else None

    def _profile(self, view: View, gpu: Gpu, tenant: _Tenant) -> Profile | None:
        key = (tenant.signature, history_name(gpu), tenant.owner_uid)
        if key not in self._known:
            found = view.profiles.newest(*key) if tenant.signature else None
            if found is not None:
                self.readings.recall(view, found)
            self._known[key] = found
        return self._known[key]


def constants_in(view: View, gpu: Gpu) -> Constants:
    """Return what was calibrated on a GPU's kind, else the defaults."""
    kept = view.fact(key_of(history_name(gpu), gpu.driver_version))
    return Constants() if kept is None else constants_of(kept)


def verdict_key(gpu: Gpu, signatures: Iterable[str]) -> str:
    """Return the key under which a verdict on programs together is kept."""
    digest = hashlib.sha256("\n".join(sorted(signatures)).encode(errors="surrogateescape")).hexdigest()[:24]
    return f"{_VERDICTS}{history_name(gpu)}/{gpu.driver_version}/{digest}"


def keep_verdict(facts: Facts, gpu: Gpu, signatures: Iterable[str], verdict: Verdict) -> None:
    """Keep a verdict on programs together for as long as it is believed."""
    name = verdict_key(gpu, signatures).removeprefix(_VERDICTS)
    facts.put_for(_VERDICTS, name, text_of(verdict), BELIEVED_SECONDS)


def verdict_of(view: View, gpu: Gpu, signatures: Iterable[str]) -> Verdict | None:
    """Return the last verdict on these programs together; None where there is none."""
    kept = view.fact(verdict_key(gpu, signatures))
    if kept is None:
        return None
    fields = json.loads(kept)
    return Verdict(Way(fields["way"]), float(fields["gain"]), float(fields["at_seconds"]))


def text_of(verdict: Verdict) -> str:
    """Return a verdict as text that is kept."""
    return json.dumps(asdict(verdict))


def declined_key(signature: str, owner_uid: int) -> str:
    """Return the key under which is kept when a program of a user could be no client of MPS, in seconds since the epoch."""
    return f"{_DECLINED}{owner_uid}/{signature}"


def keep_declined(facts: Facts, signature: str, owner_uid: int) -> None:
    """Keep that a program of a user could be no client of MPS now, for as long as it is not tried again."""
    name = declined_key(signature, owner_uid).removeprefix(_DECLINED)
    facts.put_for(_DECLINED, name, str(time.time()), BELIEVED_SECONDS)


def _first_of_each_owner(waiting: Sequence[Waiting]) -> dict[int, list[Waiting]]:
    """Return whom each owner's jobs may expect beside them: one more than are counted, since one is the job itself."""
    found: dict[int, list[Waiting]] = {}
    for each in waiting:
        mine = found.setdefault(each.owner_uid, [])
        if len(mine) <= _MOST_BESIDE:
            mine.append(each)
    return found


def _places(rooms: Sequence[GpuRoom], holding: Sequence[Entry]) -> list[_Place]:
    return [
        _Place(room.gpu, room.free_bytes, tuple(_tenant_of(each) for each in holding if _is_on(each, room.gpu.uuid)))
        for room in rooms
        if room.tenancy.mode in {None, SharingMode.MPS}
    ]


def _later_places(
    rooms: Sequence[GpuRoom], holding: Sequence[Entry], lasting: Mapping[Call, float], now_seconds: float
) -> list[_Place]:
    """Return the GPUs in time slices as they will be once nobody is there any more, the soonest first."""
    found = []
    for room in rooms:
        if room.tenancy.mode is SharingMode.TIME_SLICE:
            there = [each for each in holding if _is_on(each, room.gpu.uuid)]
            wait_seconds = empty_in_seconds(there, lasting, now_seconds)
            found.append(_Place(room.gpu, room.capacity_bytes, (), wait_seconds, room.free_bytes))
    return sorted(found, key=lambda place: place.wait_seconds)


def _with_mode(job: Waiting, under_mps: Collection[str]) -> Waiting:
    sharing = SharingWish.MPS if job.job_id in under_mps else SharingWish.TIME_SLICE
    return replace(job, request=replace(job.request, sharing=sharing))


def _tenant(job: Waiting) -> _Tenant:
    return _Tenant(job.signature, job.owner_uid)


def _tenant_of(entry: Entry) -> _Tenant:
    return _Tenant(entry.job.signature, entry.job.owner_uid)


def _is_on(entry: Entry, gpu_uuid: str) -> bool:
    lease = entry.job.lease
    return lease is not None and entry.is_lease_held and gpu_uuid in {part.gpu_uuid for part in lease.slices}
