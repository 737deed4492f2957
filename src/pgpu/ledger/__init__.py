"""The SQLite database of jobs and leases: the only state that survives a crash.

Each decision of the engine is one write transaction. The ledger stores and finds; policy is in other rooms.
"""

from pgpu.ledger.change_watch import ChangeWatch
from pgpu.ledger.charges import monotonic_now
from pgpu.ledger.decision import MOST_FORGOTTEN, Decision
from pgpu.ledger.functions import Functions
from pgpu.ledger.gpu_history import GpuHistory, GpuMinute
from pgpu.ledger.history import Call
from pgpu.ledger.ledger import Ledger
from pgpu.ledger.rows import Entry, GrowthWait, stored_bytes
from pgpu.ledger.schema import VERSION as LEDGER_VERSION
from pgpu.ledger.small_tables import ClaimRecord, FactTable, Token, Tokens
from pgpu.ledger.view import ALL_GPUS, JobPeer, LedgerView, Waiting

__all__ = [
    "ALL_GPUS",
    "LEDGER_VERSION",
    "MOST_FORGOTTEN",
    "Call",
    "ChangeWatch",
    "ClaimRecord",
    "Decision",
    "Entry",
    "FactTable",
    "Functions",
    "GpuHistory",
    "GpuMinute",
    "GrowthWait",
    "JobPeer",
    "Ledger",
    "LedgerView",
    "Token",
    "Tokens",
    "Waiting",
    "monotonic_now",
    "stored_bytes",
]
