"""Exception hierarchy of pgpu, split by the party that must act.

* PgpuError
  x RequestError            the client must change the request
    + UsageError                the options of a verb that lists are wrong (exit code 2)
    + CommandNotFoundError      the command does not exist (exit code 127)
    + CommandNotExecutableError the command cannot be executed (exit code 126)
    + JobNotFoundError          no job has this id or name
    + FunctionNotFoundError     the caller has no function of this name
    + AccessError               the caller is not allowed to do this
      - UnauthenticatedError        the caller's identity is unknown
  x CapacityError           try again later
    + WaitTimeoutError          not granted in time (exit code 124)
    + CancelledError            the wait was cancelled (exit code 130)
    + NotReadyError             something that the job needs is being repaired; the job starts then
  x NodeError               the operator of this machine must fix something
    + LedgerError               the ledger cannot be read, written or understood
      - LedgerGoneError             it was removed while processes were using it
    + EnforcementError          a limit cannot be enforced; no job is started without one
    + RuntimeUnavailableError   Docker or the kernel cannot start the job
      - EngineAwayError             the container engine does not answer; it may come back
    + ServerUnavailableError    `pgpu serve` does not answer, or does not admit this user
      - ServerFullError             its limit on connections is reached, for this user or in all
    + KubeletAwayError        this node's kubelet does not answer: it is being restarted, or hangs
    + ClusterError            a request to the Kubernetes API server failed
      - ClusterUnavailableError     it does not answer, or is overloaded: the same request may succeed later
      - ClusterAccessError          it does not know the client, or does not allow this
      - ObjectNotFoundError         it has no such object
      - ObjectConflictError         another client made or changed the object first
      - ObjectRefusedError          it rejects the object as invalid
      - HistoryGoneError            it no longer has the events since a version
  x PgpuBug                 report it

Foreign errors become one of these at the edge of the room that meets them. The command line formats them and maps them to exit
codes.
"""


class PgpuError(Exception):
    """Base of every error that pgpu raises on purpose.

    Attributes:
        hint: One line on how to fix it, or None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(PgpuError):
    """The request is wrong; nothing was changed.

    Attributes:
        nearest_bytes: The largest memory that could be granted, if that is what is wrong; otherwise None.
    """

    def __init__(self, message: str, *, hint: str | None = None, nearest_bytes: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.nearest_bytes = nearest_bytes


class UsageError(RequestError):
    """The options of a verb that lists cannot be read, or contradict each other; nothing was read."""


class CommandNotFoundError(RequestError):
    """The job's command does not exist."""


class CommandNotExecutableError(RequestError):
    """The job's command exists but cannot be executed."""


class JobNotFoundError(RequestError):
    """No job has this id or name, or several ids begin with it."""


class FunctionNotFoundError(RequestError):
    """The caller has no function of this name. Functions of other users are not disclosed."""


class AccessError(RequestError):
    """The caller is not allowed to do this."""


class UnauthenticatedError(AccessError):
    """The caller did not authenticate."""


class CapacityError(PgpuError):
    """There is no room now; the same request may succeed later."""


class WaitTimeoutError(CapacityError):
    """The request was not granted within its time limit."""


class CancelledError(CapacityError):
    """The wait was cancelled."""


class NotReadyError(CapacityError):
    """Something that a granted job needs is being repaired, such as an MPS server after a fault."""


class NodeError(PgpuError):
    """The operator must fix something on this machine."""


class LedgerError(NodeError):
    """The ledger cannot be read, written or understood."""


class LedgerGoneError(LedgerError):
    """The ledger was removed or moved while a process was using it; the process must end."""


class EnforcementError(NodeError):
    """A limit cannot be enforced, so the job was not started."""


class RuntimeUnavailableError(NodeError):
    """The container engine or the kernel cannot start the job."""


class EngineAwayError(RuntimeUnavailableError):
    """The container engine does not answer; it may come back."""


class ServerUnavailableError(NodeError):
    """A pgpu server cannot be reached, or does not admit this user."""


class ServerFullError(ServerUnavailableError):
    """The server's limit on connections is reached; no request was sent."""


class KubeletAwayError(NodeError):
    """The kubelet does not answer on its socket: it is being restarted, or hangs."""


class ClusterError(NodeError):
    """A request to the Kubernetes API server failed."""


class ClusterUnavailableError(ClusterError):
    """The API server does not answer, or is overloaded; the same request may succeed later."""


class ClusterAccessError(ClusterError):
    """The API server does not know the client, or a permission or an admission policy does not allow this."""


class ObjectNotFoundError(ClusterError):
    """The API server has no such object, or no such kind of objects."""


class ObjectConflictError(ClusterError):
    """Another client made or changed the object first."""


class ObjectRefusedError(ClusterError):
    """The API server rejects the object as invalid; the same request will never succeed."""


class HistoryGoneError(ClusterError):
    """The API server no longer has the events since the requested version."""


class PgpuBug(PgpuError):  # noqa: N818 - the house's word for it
    """This should never happen: please report it."""
