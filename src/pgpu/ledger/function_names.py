"""Which function a name means: once one was removed, its name may be another owner's.

It refuses to know more of a function than that.
"""

import sqlite3

from pgpu.errors import FunctionNotFoundError
from pgpu.model.function import identity_of
from pgpu.model.text import is_text


def missing(name: str) -> FunctionNotFoundError:
    """Return what is said of a name that is no function's, or none of the caller's."""
    return FunctionNotFoundError(f"there is no function {name!r}", hint="`pgpu functions` lists yours")


def check_same(connection: sqlite3.Connection, name: str, identity: str | None) -> None:
    """Raise where a name is no function's, or another one's than was looked at before; see `Function.identity`.

    Raises:
        FunctionNotFoundError: So it is.
    """
    row = None
    if is_text(name):
        row = connection.execute("SELECT created_at FROM functions WHERE name = ?", (name,)).fetchone()
    if row is None or identity not in {None, identity_of(name, row["created_at"])}:
        raise missing(name)
