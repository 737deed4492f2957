"""The SQLite database of jobs and leases: the one truth that survives a crash.

One writer transaction for each decision. It refuses to hold policy: it stores and finds.
"""

from pgpu.ledger.decision import Decision
from pgpu.ledger.entry import Entry
from pgpu.ledger.facts import Facts
from pgpu.ledger.ledger import Ledger
from pgpu.ledger.view import View, Waiting

__all__ = ["Decision", "Entry", "Facts", "Ledger", "View", "Waiting"]
