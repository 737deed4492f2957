"""Functions, their versions, traffic and call tokens: each change is one transaction, durable before it is acknowledged.

Ownership of a name is checked in the transaction that uses it, so of two concurrent deployments under one name only one gets
it. A change can name the identity of a function that was read before; it fails if the name belongs to another function now. Of
tokens only digests are stored, so no token can be read from the ledger. Permissions are checked by the caller.
"""

import sqlite3
import time
from collections.abc import Sequence

from pgpu.errors import FunctionNotFoundError, RequestError
from pgpu.ledger.small_tables import HAS_EXPIRED, Replicas, digest_with_end, split_end
from pgpu.ledger.sqlite_connections import Connections
from pgpu.model import Deployment, Function, FunctionToken, Share, Version, VersionState
from pgpu.model.function import WHOLE_PERCENT, identity_of
from pgpu.units import escape_undecodable, is_text


def function_not_found(name: str) -> FunctionNotFoundError:
    """Return the error for a name that is no function, or not one of the caller's."""
    return FunctionNotFoundError(f"there is no function {name!r}", hint="`pgpu function ls` lists yours")


def check_identity(connection: sqlite3.Connection, name: str, identity: str | None) -> None:
    """Check that a name is a function, and the same one as before; see `Function.identity`.

    Raises:
        FunctionNotFoundError: It is not.
    """
    row = None
    if is_text(name):
        row = connection.execute("SELECT created_at FROM functions WHERE name = ?", (name,)).fetchone()
    if row is None or identity not in {None, identity_of(name, row["created_at"])}:
        raise function_not_found(name)


# Of one function.
MOST_TOKENS = 1000


class FunctionTokens:
    """Call tokens by id; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def put(  # noqa: PLR0917 - the columns, in their order
        self,
        token_id: str,
        function: str,
        digest: str,
        label: str,
        identity: str | None = None,
        expires_at_seconds: float | None = None,
    ) -> None:
        """Store a new token, and delete those of the function that have expired.

        Args:
            token_id: Its public part.
            function: The function that it may call.
            digest: Of its secret part.
            label: For its owner.
            identity: Identity of the function; None for any function of this name.
            expires_at_seconds: None for no end.

        Raises:
            FunctionNotFoundError: There is no such function any more.
            RequestError: The function has too many tokens.
        """
        with self._connections.writing() as connection:
            check_identity(connection, function, identity)
            statement = f"DELETE FROM function_tokens WHERE {HAS_EXPIRED} AND function = ?2"  # noqa: S608 - words of our own
            connection.execute(statement, (time.time(), function))
            statement = "SELECT count(*) FROM function_tokens WHERE function = ?"
            if connection.execute(statement, (function,)).fetchone()[0] >= MOST_TOKENS:
                raise RequestError(
                    f"{function} has {MOST_TOKENS} tokens", hint=f"pgpu function token {function} revoke ID"
                )
            stored = digest_with_end(digest, expires_at_seconds)
            row = (token_id, function, stored, escape_undecodable(label), time.time())
            connection.execute("INSERT INTO function_tokens VALUES (?, ?, ?, ?, ?)", row)

    def digest(self, token_id: str) -> tuple[str, str] | None:
        """Return the identity of a token's function, and the digest of its secret part; None if there is no such valid token."""
        with self._connections.reading() as connection:
            statement = (
                "SELECT name, functions.created_at, digest FROM function_tokens JOIN functions ON name = function"  # noqa: S608 - words of our own
                f" WHERE NOT {HAS_EXPIRED} AND id = ?2"
            )
            row = connection.execute(statement, (time.time(), token_id)).fetchone()
        return None if row is None else (identity_of(row["name"], row["created_at"]), split_end(row["digest"])[0])

    def of(self, function: str) -> list[FunctionToken]:
        """Return a function's valid tokens, oldest first."""
        statement = (
            "SELECT id, function, label, created_at, digest FROM function_tokens"  # noqa: S608 - words of our own
            f" WHERE NOT {HAS_EXPIRED} AND function = ?2 ORDER BY created_at, id"
        )
        with self._connections.reading() as connection:
            rows = connection.execute(statement, (time.time(), function)).fetchall()
        return [
            FunctionToken(token_id, name, label, created_at_seconds, split_end(stored)[1])
            for token_id, name, label, created_at_seconds, stored in rows
        ]

    def remove(self, function: str, token_id: str) -> bool:
        """Delete a token of a function; False if there was none. Ids are random, so they do not collide between functions."""
        with self._connections.writing() as connection:
            statement = "DELETE FROM function_tokens WHERE function = ? AND id = ?"
            return connection.execute(statement, (function, token_id)).rowcount > 0


# Of one function: each version keeps its bundle for a rollback.
MOST_VERSIONS = 1000

# Of one owner: names are shared by the whole server.
MOST_FUNCTIONS = 1000

# Of one owner's versions together: a list of all functions contains all of it.
MOST_TEXT_BYTES = 4 << 20

# Counted for each version, in addition to its text.
_VERSION_BYTES = 512


class Functions:
    """Functions by name; every method may raise `LedgerError`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.tokens = FunctionTokens(connections)
        self.replicas = Replicas(connections)

    def deploy(self, deployment: Deployment, owner_uid: int, inherited: str | None = None) -> Version:
        """Store a new version, and the function if it is new; the first version gets all of the traffic.

        Args:
            deployment: Contents of the version.
            owner_uid: UID of the owner.
            inherited: What its replicas inherit from the owner, as `Ledger.inherited` for jobs.

        Raises:
            RequestError: The name belongs to another owner, or a limit is reached.
        """
        with self._connections.writing() as connection:
            # One transaction: of two concurrent deployments under a new name, the second one finds the first one's row.
            is_first = _take_name(connection, deployment.function, owner_uid)
            _check_room(connection, deployment, owner_uid)
            number = _add_version(connection, deployment, inherited)
            if is_first or deployment.rolls_out:
                _roll_out(connection, deployment.function, [Share(number, WHOLE_PERCENT)])
            return _read_function(connection, deployment.function).version(number)

    def all(self, owner_uid: int | None = None) -> list[Function]:
        """Return functions by name, of one owner or all."""
        with self._connections.reading() as connection:
            clause = "SELECT name FROM functions WHERE owner_uid = ifnull(?, owner_uid) ORDER BY name"
            return [
                _read_function(connection, row["name"]) for row in connection.execute(clause, (owner_uid,)).fetchall()
            ]

    def get(self, name: str, owner_uid: int | None = None) -> Function:
        """Return one function.

        Args:
            name: Its name.
            owner_uid: Only functions of this user; None for all.

        Raises:
            FunctionNotFoundError: There is none.
        """
        with self._connections.reading() as connection:
            found = _read_function(connection, name)
        if owner_uid not in {None, found.owner_uid}:
            raise function_not_found(name)
        return found

    def roll_out(self, name: str, traffic: Sequence[Share], identity: str | None = None) -> Function:
        """Set the traffic of a function.

        Args:
            name: Of a function.
            traffic: Shares of distinct versions that sum to 100 %.
            identity: Identity of the function; None for any function of this name. The same for every method here.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: There is no such version, one with traffic has failed, or the shares do not sum to 100 %.
        """
        if sum(share.percent for share in traffic) != WHOLE_PERCENT:
            raise RequestError("the shares of a function's traffic sum to 100 %")
        with self._connections.writing() as connection:
            check_identity(connection, name, identity)
            found = _read_function(connection, name)
            for share in traffic:
                version = found.version(share.version)
                if version.state is VersionState.FAILED:
                    raise RequestError(f"{version.label} failed: {version.reason}", hint="deploy another version")
            _roll_out(connection, name, traffic)
            return _read_function(connection, name)

    def roll_back(self, name: str, identity: str | None = None) -> Function:
        """Restore the traffic from before the version that was rolled out last, skipping versions that have failed since.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: There is no such rollout.
        """
        with self._connections.writing() as connection:
            check_identity(connection, name, identity)
            if not _fall_back(connection, name):
                raise RequestError(
                    f"{name} has no earlier traffic to go back to",
                    hint=f"choose a version: pgpu function rollout {name}@N",
                )
            return _read_function(connection, name)

    def set_version_state(
        self,
        name: str,
        number: int,
        state: VersionState,
        reason: str | None = None,
        created_at_seconds: float | None = None,
    ) -> None:
        """Set the state of a version. If a version with traffic failed, the traffic before is restored if there was any.

        Args:
            name: Of a function.
            number: Of the version.
            state: Of it.
            reason: Why it failed.
            created_at_seconds: Of the version that is meant; None for any version of this number.

        Raises:
            FunctionNotFoundError: There is no such function any more, or the version is not the same.
            RequestError: There is no such version.
        """
        with self._connections.writing() as connection:
            found = _read_function(connection, name)
            # A build that began before the function was removed and deployed again must not change the new version.
            if created_at_seconds not in {None, found.version(number).created_at_seconds}:
                raise function_not_found(name)
            connection.execute(
                "UPDATE function_versions SET state = ?, reason = ? WHERE function = ? AND number = ?",
                (state.value, None if reason is None else escape_undecodable(reason), name, number),
            )
            if state is VersionState.FAILED and number in {share.version for share in found.traffic}:
                _fall_back(connection, name)

    def version_to_start(self, name: str, number: int) -> tuple[Version, str | None]:
        """Return a version and its `inherited`, read in one transaction, so that its job gets the right account.

        Raises:
            FunctionNotFoundError: There is no such function.
            RequestError: There is no such version.
        """
        statement = "SELECT inherited FROM function_versions WHERE function = ? AND number = ?"
        with self._connections.reading() as connection:
            version = _read_function(connection, name).version(number)
            return version, connection.execute(statement, (name, number)).fetchone()["inherited"]

    def remove(self, name: str, identity: str | None = None) -> None:
        """Delete a function with all its versions, rollouts, tokens and replicas.

        Raises:
            FunctionNotFoundError: There is none.
        """
        with self._connections.writing() as connection:
            check_identity(connection, name, identity)
            # Foreign keys delete everything else (ON DELETE CASCADE). Replicas that still run find their row gone.
            connection.execute("DELETE FROM functions WHERE name = ?", (name,))


def _take_name(connection: sqlite3.Connection, name: str, owner_uid: int) -> bool:
    row = connection.execute("SELECT owner_uid FROM functions WHERE name = ?", (name,)).fetchone()
    if row is not None:
        if row["owner_uid"] != owner_uid:
            raise RequestError(f"the name {name} belongs to another user", hint="choose another one: --name")
        return False
    count = connection.execute("SELECT count(*) FROM functions WHERE owner_uid = ?", (owner_uid,)).fetchone()[0]
    if count >= MOST_FUNCTIONS:
        raise RequestError(f"you have {count} functions, as many as one may have", hint="pgpu function undeploy NAME")
    connection.execute("INSERT INTO functions VALUES (?, ?, ?)", (name, owner_uid, time.time()))
    return True


def _check_room(connection: sqlite3.Connection, deployment: Deployment, owner_uid: int) -> None:
    statement = (
        "SELECT ifnull(sum(? + length(app) + length(declaration) + length(ifnull(image, ''))"
        " + length(ifnull(requirements, ''))), 0) FROM function_versions JOIN functions ON name = function"
        " WHERE owner_uid = ?"
    )
    held = connection.execute(statement, (_VERSION_BYTES, owner_uid)).fetchone()[0]
    words = (deployment.app, deployment.declaration, deployment.image or "", deployment.requirements or "")
    if held + _VERSION_BYTES + sum(map(len, words)) > MOST_TEXT_BYTES:
        raise RequestError(
            f"the text of your versions, lock files included, is {held >> 10} KiB of {MOST_TEXT_BYTES >> 10} KiB",
            hint="pgpu function undeploy NAME, and deploy it anew",
        )


def _add_version(connection: sqlite3.Connection, deployment: Deployment, inherited: str | None) -> int:
    statement = "SELECT ifnull(max(number), 0) FROM function_versions WHERE function = ?"
    number = int(connection.execute(statement, (deployment.function,)).fetchone()[0]) + 1
    if number > MOST_VERSIONS:
        raise RequestError(
            f"{deployment.function} has {MOST_VERSIONS} versions", hint=f"pgpu function undeploy {deployment.function}"
        )
    is_ready = deployment.requirements is None and not deployment.is_filled
    state = VersionState.READY if is_ready else VersionState.PENDING
    connection.execute(
        "INSERT INTO function_versions (function, number, app, bundle, declaration, runtime, image, requirements,"
        " state, created_at, inherited) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            deployment.function,
            number,
            deployment.app,
            deployment.bundle,
            deployment.declaration,
            deployment.runtime,
            deployment.image,
            deployment.requirements,
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
    """Restore the traffic before; False if there is no rollout without a failed version.

    A version whose share has grown last is rejected: the traffic before is that without it, so that a canary which got all of the
    traffic keeps no part of it. Where each one before has it, such as after the end of a canary, the newest is taken.
    """
    rollouts: dict[int, dict[int, int]] = {}
    statement = "SELECT rollout, version, percent FROM function_traffic WHERE function = ? ORDER BY rollout"
    for rollout, version, percent in connection.execute(statement, (name,)):
        rollouts.setdefault(rollout, {})[version] = percent
    statement = "SELECT number FROM function_versions WHERE function = ? AND state = 'failed'"
    failed = {number for (number,) in connection.execute(statement, (name,))}
    *earlier, current = rollouts
    before = rollouts[earlier[-1]] if earlier else {}
    rejected = {version for version, percent in rollouts[current].items() if percent > before.get(version, 0)}
    usable = [each for each in earlier if not failed & rollouts[each].keys()]
    if not usable:
        return False
    chosen = max((each for each in usable if not rejected & rollouts[each].keys()), default=usable[-1])
    # The newest rollout is the current one, so those after it are deleted instead of adding a copy: a second rollback then
    # goes back further, and not to where the first one came from.
    connection.execute("DELETE FROM function_rollouts WHERE function = ? AND sequence > ?", (name, chosen))
    return True


def _read_function(connection: sqlite3.Connection, name: str) -> Function:
    row = None
    if is_text(name):
        row = connection.execute("SELECT * FROM functions WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise function_not_found(name)
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
        tuple(_version_of(each, row["owner_uid"]) for each in versions),
        tuple(Share(*each) for each in traffic),
    )


def _version_of(row: sqlite3.Row, owner_uid: int) -> Version:
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
