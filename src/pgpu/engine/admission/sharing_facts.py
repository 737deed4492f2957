"""What the ledger remembers about programs that share a GPU: verdicts of trials, programs that MPS declined, profile readings.

Each is a fact with an age, written outside of rounds and read in them.
"""

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from pgpu.advising import needs_estimation
from pgpu.advising.constants_fit import constants_of, key_of
from pgpu.advising.contention import Constants
from pgpu.advising.needs_estimation import cache_estimate, estimate_needs, is_cached
from pgpu.advising.verification import Verdict, Way
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Call, Facts, Ledger, LedgerView
from pgpu.model import Gpu, Profile

BELIEVED_SECONDS = 86_400.0
"""For how long a verdict applies; then `advising` decides again."""

KEPT_SECONDS = 30 * 86_400.0
"""For how long a reading is kept; it is computed again after that."""

_VERDICTS, _DECLINED = "sharing-verdict/", "mps-declined/"
"""Prefixes of the facts' keys."""


def constants_in(view: LedgerView, gpu: Gpu) -> Constants:
    """Return the constants that were calibrated on a GPU's model and driver, else the defaults."""
    text = view.fact(key_of(history_name(gpu), gpu.driver_version))
    return Constants() if text is None else constants_of(text)


def verdict_key(gpu: Gpu, signatures: Iterable[str]) -> str:
    """Return the key of the verdict on these programs together."""
    digest = hashlib.sha256("\n".join(sorted(signatures)).encode(errors="surrogateescape")).hexdigest()[:24]
    return f"{_VERDICTS}{history_name(gpu)}/{gpu.driver_version}/{digest}"


def keep_verdict(facts: Facts, gpu: Gpu, signatures: Iterable[str], verdict: Verdict) -> None:
    """Store a verdict on programs together for `BELIEVED_SECONDS`."""
    name = verdict_key(gpu, signatures).removeprefix(_VERDICTS)
    facts.put_for(_VERDICTS, name, text_of(verdict), BELIEVED_SECONDS)


def verdict_of(view: LedgerView, gpu: Gpu, signatures: Iterable[str]) -> Verdict | None:
    """Return the last verdict on these programs together; None where there is none."""
    text = view.fact(verdict_key(gpu, signatures))
    if text is None:
        return None
    fields = json.loads(text)
    return Verdict(Way(fields["way"]), float(fields["gain"]), float(fields["at_seconds"]))


def text_of(verdict: Verdict) -> str:
    """Return a verdict as text for the ledger."""
    return json.dumps(asdict(verdict))


def keep_declined(facts: Facts, signature: str, owner_uid: int) -> None:
    """Store that a user's program could not become a client of MPS; it is not tried again for `BELIEVED_SECONDS`."""
    facts.put_for(_DECLINED, f"{owner_uid}/{signature}", str(time.time()), BELIEVED_SECONDS)


def was_declined(view: LedgerView, signature: str, owner_uid: int) -> bool:
    """Whether a user's program could not become a client of MPS lately."""
    text = view.fact(f"{_DECLINED}{owner_uid}/{signature}") if signature else None
    return text is not None and time.time() - float(text) < BELIEVED_SECONDS


@dataclass(slots=True)
class ProfileReadings:
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
        reading = None if text is None else needs_estimation.reading_of(text)
        if reading is None:
            self._unkept[name] = profile
        else:
            cache_estimate(profile, reading)

    def keep(self, facts: Facts) -> None:
        """Compute and store the missing readings; never inside a transaction.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        unkept, self._unkept = self._unkept, {}
        for name, profile in unkept.items():
            facts.put_for(
                needs_estimation.PREFIX, name, needs_estimation.text_of(estimate_needs(profile)), KEPT_SECONDS
            )

    def prepare(self, ledger: Ledger, gpus: Sequence[Gpu], calls: Collection[Call]) -> None:
        """Load or compute the readings of these calls' profiles on these GPUs, before a transaction that needs them.

        Raises:
            LedgerError: The ledger cannot be used.
        """
        with ledger.view() as view:
            for signature, owner_uid in calls:
                for name in {history_name(gpu) for gpu in gpus} if signature else ():
                    profile = view.profiles.newest(signature, name, owner_uid)
                    if profile is not None:
                        self.recall(view, profile)
        self.keep(ledger.facts)
