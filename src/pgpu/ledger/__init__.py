"""The SQLite database of jobs and leases: the one truth that survives a crash.

One writer transaction for each decision. It refuses to hold policy: it stores and finds.
"""

from pgpu.ledger.decision import Decision
from pgpu.ledger.functions import Functions
from pgpu.ledger.held_claims import ClaimRecord
from pgpu.ledger.history import Call
from pgpu.ledger.ledger import Ledger
from pgpu.ledger.rows import Entry
from pgpu.ledger.schema import VERSION as LEDGER_VERSION
from pgpu.ledger.small_tables import Facts, Token, Tokens
from pgpu.ledger.view import ALL_GPUS, Peer, View, Waiting

__all__ = [
    "ALL_GPUS",
    "LEDGER_VERSION",
    "Call",
    "ClaimRecord",
    "Decision",
    "Entry",
    "Facts",
    "Functions",
    "Ledger",
    "Peer",
    "Token",
    "Tokens",
    "View",
    "Waiting",
]
