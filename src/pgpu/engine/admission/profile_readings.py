"""Profiles that were read once are read for everybody: what came of it is kept in the ledger, outside of any decision.

Reading a profile that antagonists tell of takes tenths of a second of a processor. A round in a transaction that did so would
keep every other writer waiting. It refuses to judge what a profile says.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pgpu.advising import needs_estimation
from pgpu.advising.needs_estimation import cache_estimate, estimate_needs, is_cached
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Call, Facts, Ledger, View
from pgpu.model import Gpu, Profile

KEPT_SECONDS = 30 * 86_400.0
"""A program that is asked for after a month is read anew."""


@dataclass(slots=True)
class ProfileReadings:
    """Of one engine."""

    _unkept: dict[str, Profile] = field(default_factory=dict)
    """Read in this process, by name, and not kept yet."""

    def recall(self, view: View, profile: Profile) -> None:
        """Have a profile's reading at hand, if anybody kept it; else it is read when it is asked for, and kept later."""
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
        """Keep what was read since; never in a transaction.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        unkept, self._unkept = self._unkept, {}
        for name, profile in unkept.items():
            facts.put_for(
                needs_estimation.PREFIX, name, needs_estimation.text_of(estimate_needs(profile)), KEPT_SECONDS
            )

    def prepare(self, ledger: Ledger, gpus: Sequence[Gpu], calls: Collection[Call]) -> None:
        """Read what these calls' profiles say on these GPUs, before a transaction asks for it.

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
