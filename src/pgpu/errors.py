"""Every error of pgpu, split by who must act.

Our exception hierarchy:

* PgpuError
  x RequestError            the asker must change the request
    + CommandNotFoundError      the command does not exist (exit code 127)
    + CommandNotExecutableError the command cannot be executed (exit code 126)
    + JobNotFoundError          no job has this id or name
    + FunctionNotFoundError     the caller has no function of this name
    + AccessError               the caller may not do this
      - UnauthenticatedError        nobody knows who the caller is
  x CapacityError           try again later
    + WaitTimeoutError          not granted in time (exit code 124)
    + CancelledError            the wait was cancelled (exit code 130)
    + NotReadyError             something that the job needs is being put in order; it is started then
  x NodeError               the operator of this machine must mend something
    + LedgerError               the ledger cannot be read, written or understood
      - LedgerGoneError             it was taken away from under those who work on its word
    + EnforcementError          a limit cannot be made to bind; nothing is started without one
    + RuntimeUnavailableError   Docker or the kernel cannot start the job
    + ServerUnavailableError    `pgpu serve` does not answer, or does not let this user in
      - ServerFullError             it has no room for another connection, of this user or at all
    + KubeletAwayError        this node's kubelet does not answer: it is being started, or stands still
    + ClusterError            Kubernetes' API server did not do what it was asked
      - ClusterUnavailableError     it does not answer, or has too much to do: the same may succeed later
      - ClusterAccessError          it does not know who asks, or does not allow this
      - ObjectNotFoundError         it has no such object
      - ObjectConflictError         somebody else made or changed the object first
      - ObjectRefusedError          it finds the object wrong
      - HistoryGoneError            it no longer knows what happened since a version
  x PgpuBug                 report it

Foreign errors become one of these at the edge of the room that meets them. This module refuses to format: the
command line decides how an error looks and which exit code it has.
"""


class PgpuError(Exception):
    """Base of every error that pgpu raises on purpose.

    Attributes:
        hint: One line that says what to do about it, or None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(PgpuError):
    """The request is wrong; nothing was changed.

    Attributes:
        nearest_bytes: The largest memory that could be granted, where that is what is wrong; else None.
    """

    def __init__(self, message: str, *, hint: str | None = None, nearest_bytes: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.nearest_bytes = nearest_bytes


class CommandNotFoundError(RequestError):
    """The job's command does not exist."""


class CommandNotExecutableError(RequestError):
    """The job's command exists and cannot be executed."""


class JobNotFoundError(RequestError):
    """No job has this id or name, or several ids begin with it."""


class FunctionNotFoundError(RequestError):
    """The caller has no function of this name; whether somebody else has one is not told."""


class AccessError(RequestError):
    """The caller may not do this."""


class UnauthenticatedError(AccessError):
    """The caller did not show who they are."""


class CapacityError(PgpuError):
    """There is no room now; the same request may succeed later."""


class WaitTimeoutError(CapacityError):
    """The request was not granted in the time its asker gave it."""


class CancelledError(CapacityError):
    """The asker stopped waiting."""


class NotReadyError(CapacityError):
    """Something that a granted job needs is being put in order, such as an MPS server after a fault."""


class NodeError(PgpuError):
    """Something on this machine must be mended by its operator."""


class LedgerError(NodeError):
    """The ledger cannot be read, written or understood."""


class LedgerGoneError(LedgerError):
    """The ledger was removed or moved away from under a process that works on its word, which has nothing left to do."""


class EnforcementError(NodeError):
    """A limit cannot be made to bind, so the job was not started."""


class RuntimeUnavailableError(NodeError):
    """The container engine or the kernel cannot start the job."""


class EngineAwayError(RuntimeUnavailableError):
    """The container engine does not answer; it may come back."""


class ServerUnavailableError(NodeError):
    """A server of pgpu cannot be reached, or does not let this user in."""


class ServerFullError(ServerUnavailableError):
    """The server has no room for another connection; nothing was asked."""


class KubeletAwayError(NodeError):
    """The kubelet does not answer on its socket: it is being started, or stands still."""


class ClusterError(NodeError):
    """Kubernetes' API server did not do what it was asked."""


class ClusterUnavailableError(ClusterError):
    """The API server does not answer, or has too much to do; the same may succeed later."""


class ClusterAccessError(ClusterError):
    """The API server does not know who asks, or does not allow this: a permission or an admission policy is in the way."""


class ObjectNotFoundError(ClusterError):
    """The API server has no such object, or no such kind of objects."""


class ObjectConflictError(ClusterError):
    """Somebody else made or changed the object first."""


class ObjectRefusedError(ClusterError):
    """The API server finds the object wrong; the same will never succeed."""


class HistoryGoneError(ClusterError):
    """The API server no longer knows what happened since the version from which it was asked to tell."""


class PgpuBug(PgpuError):  # noqa: N818 - the house's word for it
    """This should never happen: please report it."""
