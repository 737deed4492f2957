"""Functions, their versions and their traffic: each change is one transaction, durable before it is acknowledged.

Whose a name is, is looked up in the transaction that uses it, so that of two who want one name at once one gets it; and
whoever looked at a function before changes that one alone, and never another one that got its name meanwhile. It refuses to know who may ask, what a declaration means and where bundles lie.
"""

import sqlite3
import time
from collections.abc import Sequence

from pgpu.errors import FunctionNotFoundError, RequestError
from pgpu.ledger.connection import Connections
from pgpu.ledger.replicas import Replicas
from pgpu.model import Deployment, Function, FunctionToken, Share, Version, VersionState
from pgpu.model.function import WHOLE_PERCENT, identity_of
from pgpu.model.text import escape_undecodable, is_text


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


MOST_TOKENS = 1000
"""Of one function."""


class FunctionTokens:
    """Tokens of functions by id, durable; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(self, token_id: str, function: str, digest: str, label: str, identity: str | None = None) -> None:
        """Keep a new token.

        Args:
            token_id: Its public part.
            function: Which it may call.
            digest: Of its secret part.
            label: For its owner.
            identity: Of the function that is meant; None for whichever has the name.

        Raises:
            FunctionNotFoundError: There is no such function any more.
            RequestError: The function has too many.
        """
        with self._connections.writing() as connection:
            check_same(connection, function, identity)
            statement = "SELECT count(*) FROM function_tokens WHERE function = ?"
            if connection.execute(statement, (function,)).fetchone()[0] >= MOST_TOKENS:
                raise RequestError(f"{function} has {MOST_TOKENS} tokens", hint=f"pgpu token {function} revoke ID")
            row = (token_id, function, digest, escape_undecodable(label), time.time())
            connection.execute("INSERT INTO function_tokens VALUES (?, ?, ?, ?, ?)", row)

    def digest(self, token_id: str) -> tuple[str, str] | None:
        """Return the identity of the function that a token calls, and the digest of its secret part; None: there is none."""
        with self._connections.reading() as connection:
            statement = (
                "SELECT name, functions.created_at, digest FROM function_tokens JOIN functions ON name = function"
                " WHERE id = ?"
            )
            row = connection.execute(statement, (token_id,)).fetchone()
        return None if row is None else (identity_of(row["name"], row["created_at"]), row["digest"])

    def of(self, function: str) -> list[FunctionToken]:
        """Return a function's tokens, oldest first."""
        statement = (
            "SELECT id, function, label, created_at FROM function_tokens WHERE function = ? ORDER BY created_at, id"
        )
        with self._connections.reading() as connection:
            return [FunctionToken(*row) for row in connection.execute(statement, (function,))]

    def remove(self, function: str, token_id: str) -> bool:
        """Forget a token of a function; False if there was none. Ids are random: another function's has another one."""
        with self._connections.writing() as connection:
            statement = "DELETE FROM function_tokens WHERE function = ? AND id = ?"
            return connection.execute(statement, (function, token_id)).rowcount > 0


MOST_VERSIONS = 1000
"""Of one function: each keeps its bundle, for a rollback."""

MOST_FUNCTIONS = 1000
"""Of one owner: a name is the whole server's."""

MOST_TEXT_BYTES = 4 << 20
"""Of one owner's versions together: whoever asks for everybody's functions is told all of it."""

_VERSION_BYTES = 512
"""Of each version, beside its words."""


class Functions:
    """Functions by name, durable; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.tokens = FunctionTokens(connections)
        self.replicas = Replicas(connections)

    def deploy(self, deployment: Deployment, owner_uid: int, inherited: str | None = None) -> Version:
        """Keep a new version, with the function where there was none; the first one gets all of the traffic.

        Args:
            deployment: What it is made of.
            owner_uid: Whose it is.
            inherited: What its replicas have of the owner, as `Ledger.inherited` has it of jobs.

        Raises:
            RequestError: The name is another owner's, or there are too many already.
        """
        with self._connections.writing() as connection:
            is_first = _claim(connection, deployment.function, owner_uid)
            _check_room(connection, deployment, owner_uid)
            number = _add_version(connection, deployment, inherited)
            if is_first or deployment.rolls_out:
                _roll_out(connection, deployment.function, [Share(number, WHOLE_PERCENT)])
            return _function(connection, deployment.function).version(number)

    def all(self, owner_uid: int | None = None) -> list[Function]:
        """Return functions by name; of one owner, or everybody's."""
        with self._connections.reading() as connection:
            clause = "SELECT name FROM functions WHERE owner_uid = ifnull(?, owner_uid) ORDER BY name"
            return [_function(connection, row["name"]) for row in connection.execute(clause, (owner_uid,)).fetchall()]

    def get(self, name: str, owner_uid: int | None = None) -> Function:
        """Return one function.

        Args:
            name: Its name.
            owner_uid: Whose functions alone are looked at; None for everybody's.

        Raises:
            FunctionNotFoundError: There is none.
        """
        with self._connections.reading() as connection:
            found = _function(connection, name)
        if owner_uid not in {None, found.owner_uid}:
            raise missing(name)
        return found

    def roll_out(self, name: str, traffic: Sequence[Share], identity: str | None = None) -> Function:
        """Let this be the traffic from now on.

        Args:
            name: Of a function.
            traffic: Shares of distinct versions that sum to 100 %.
            identity: Of the function that is meant; None for whichever has the name. So of every method here.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: There is no such version, one that gets traffic has failed, or they do not sum to 100 %.
        """
        if sum(share.percent for share in traffic) != WHOLE_PERCENT:
            raise RequestError("the shares of a function's traffic sum to 100 %")
        with self._connections.writing() as connection:
            check_same(connection, name, identity)
            found = _function(connection, name)
            for share in traffic:
                version = found.version(share.version)
                if version.state is VersionState.FAILED:
                    raise RequestError(f"{version.label} failed: {version.reason}", hint="deploy another version")
            _roll_out(connection, name, traffic)
            return _function(connection, name)

    def roll_back(self, name: str, identity: str | None = None) -> Function:
        """Let the traffic be what it was before, past rollouts of what has failed since.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: There is nothing to go back to.
        """
        with self._connections.writing() as connection:
            check_same(connection, name, identity)
            if not _fall_back(connection, name):
                raise RequestError(
                    f"{name} has no traffic of before to go back to", hint=f"choose a version: pgpu rollout {name}@N"
                )
            return _function(connection, name)

    def judge(
        self,
        name: str,
        number: int,
        state: VersionState,
        reason: str | None = None,
        created_at_seconds: float | None = None,
    ) -> None:
        """Note whether a version can be served; traffic of one that failed is again what it was, where there was any.

        Args:
            name: Of a function.
            number: Of the version.
            state: Of it.
            reason: Why it failed.
            created_at_seconds: Of the version that was looked at; None for whichever has the number.

        Raises:
            FunctionNotFoundError: There is no such function any more, or the version is another one's.
            RequestError: Nor such a version.
        """
        with self._connections.writing() as connection:
            found = _function(connection, name)
            if created_at_seconds not in {None, found.version(number).created_at_seconds}:
                raise missing(name)
            connection.execute(
                "UPDATE function_versions SET state = ?, reason = ? WHERE function = ? AND number = ?",
                (state.value, None if reason is None else escape_undecodable(reason), name, number),
            )
            if state is VersionState.FAILED and number in {share.version for share in found.traffic}:
                _fall_back(connection, name)

    def to_start(self, name: str, number: int) -> tuple[Version, str | None]:
        """Return a version, and what it was kept with as inherited: of one moment, or its job would get another account.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: Nor such a version.
        """
        statement = "SELECT inherited FROM function_versions WHERE function = ? AND number = ?"
        with self._connections.reading() as connection:
            version = _function(connection, name).version(number)
            return version, connection.execute(statement, (name, number)).fetchone()["inherited"]

    def remove(self, name: str, identity: str | None = None) -> None:
        """Forget a function with all that is known of it.

        Raises:
            FunctionNotFoundError: There is none.
        """
        with self._connections.writing() as connection:
            check_same(connection, name, identity)
            connection.execute("DELETE FROM functions WHERE name = ?", (name,))


_ROLLOUT_BEFORE = """
SELECT sequence FROM function_rollouts
WHERE function = ?1 AND sequence < (SELECT max(sequence) FROM function_rollouts WHERE function = ?1)
    AND NOT EXISTS (SELECT 1 FROM function_traffic JOIN function_versions ON number = version
        AND function_versions.function = function_traffic.function WHERE rollout = sequence AND state = 'failed')
ORDER BY sequence DESC LIMIT 1
"""
"""The newest one behind the current, of whose versions none has failed."""


def _claim(connection: sqlite3.Connection, name: str, owner_uid: int) -> bool:
    """Return whether the name is new; it is the owner's then."""
    row = connection.execute("SELECT owner_uid FROM functions WHERE name = ?", (name,)).fetchone()
    if row is not None:
        if row["owner_uid"] != owner_uid:
            raise RequestError(f"the name {name} is another user's already", hint="choose another one: --name")
        return False
    count = connection.execute("SELECT count(*) FROM functions WHERE owner_uid = ?", (owner_uid,)).fetchone()[0]
    if count >= MOST_FUNCTIONS:
        raise RequestError(f"you have {count} functions, as many as one may have", hint="pgpu undeploy NAME")
    connection.execute("INSERT INTO functions VALUES (?, ?, ?)", (name, owner_uid, time.time()))
    return True


def _check_room(connection: sqlite3.Connection, asked: Deployment, owner_uid: int) -> None:
    statement = (
        "SELECT ifnull(sum(? + length(app) + length(declaration) + length(ifnull(image, ''))"
        " + length(ifnull(requirements, ''))), 0) FROM function_versions JOIN functions ON name = function"
        " WHERE owner_uid = ?"
    )
    held = connection.execute(statement, (_VERSION_BYTES, owner_uid)).fetchone()[0]
    words = (asked.app, asked.declaration, asked.image or "", asked.requirements or "")
    if held + _VERSION_BYTES + sum(map(len, words)) > MOST_TEXT_BYTES:
        raise RequestError(
            f"what your versions say, lock files included, holds {held >> 10} KiB of {MOST_TEXT_BYTES >> 10} KiB",
            hint="pgpu undeploy NAME, and deploy it anew",
        )


def _add_version(connection: sqlite3.Connection, asked: Deployment, inherited: str | None) -> int:
    statement = "SELECT ifnull(max(number), 0) FROM function_versions WHERE function = ?"
    number = int(connection.execute(statement, (asked.function,)).fetchone()[0]) + 1
    if number > MOST_VERSIONS:
        raise RequestError(f"{asked.function} has {MOST_VERSIONS} versions", hint=f"pgpu undeploy {asked.function}")
    state = VersionState.READY if asked.requirements is None else VersionState.PENDING
    connection.execute(
        "INSERT INTO function_versions (function, number, app, bundle, declaration, runtime, image, requirements,"
        " state, created_at, inherited) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            asked.function,
            number,
            asked.app,
            asked.bundle,
            asked.declaration,
            asked.runtime,
            asked.image,
            asked.requirements,
            state.value,
            time.time(),
            inherited,
        ),
    )
    return number


def _roll_out(connection: sqlite3.Connection, name: str, traffic: Sequence[Share]) -> None:
    statement = "INSERT INTO function_rollouts (function, at) VALUES (?, ?)"
    rollout = connection.execute(statement, (name, time.time())).lastrowid
    rows = [(rollout, name, share.version, share.percent) for share in traffic]
    connection.executemany("INSERT INTO function_traffic VALUES (?, ?, ?, ?)", rows)


def _fall_back(connection: sqlite3.Connection, name: str) -> bool:
    """Let the traffic be what it was; False if there was none of versions that have not failed."""
    before = connection.execute(_ROLLOUT_BEFORE, (name,)).fetchone()
    if before is None:
        return False
    statement = "DELETE FROM function_rollouts WHERE function = ? AND sequence > ?"
    connection.execute(statement, (name, before["sequence"]))
    return True


def _function(connection: sqlite3.Connection, name: str) -> Function:
    row = None
    if is_text(name):
        row = connection.execute("SELECT * FROM functions WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise missing(name)
    versions = connection.execute("SELECT * FROM function_versions WHERE function = ? ORDER BY number", (name,))
    traffic = connection.execute(
        "SELECT version, percent FROM function_traffic WHERE rollout ="
        " (SELECT max(sequence) FROM function_rollouts WHERE function = ?) ORDER BY percent DESC, version",
        (name,),
    )
    return Function(
        name,
        row["owner_uid"],
        row["created_at"],
        tuple(_version(each, row["owner_uid"]) for each in versions),
        tuple(Share(*each) for each in traffic),
    )


def _version(row: sqlite3.Row, owner_uid: int) -> Version:
    return Version(
        function=row["function"],
        number=row["number"],
        owner_uid=owner_uid,
        app=row["app"],
        bundle=row["bundle"],
        declaration=row["declaration"],
        runtime=row["runtime"],
        image=row["image"],
        requirements=row["requirements"],
        state=VersionState(row["state"]),
        reason=row["reason"],
        created_at_seconds=row["created_at"],
    )
