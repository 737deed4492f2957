"""The HTTP interface of the services as one table: which method and path carry which operation.

The server makes its routes from this table, and the HTTP client its methods. A row names an operation of `JobService`,
`FunctionService` or `AdministrationService`. Its parameters are, in this order: those in the path, the fields of the body
or the body itself, the query. Routes with streams, pages or waits are written by hand on both sides.
"""

import re
from functools import cached_property
from typing import Any

from pgpu.advising.advice import Advice
from pgpu.engine.history.usage_records import CallHistory, Findings, Profiled, UserShare, Waste
from pgpu.model import (
    ColdStart,
    Deployment,
    Function,
    FunctionToken,
    GpuSeries,
    Job,
    Outsider,
    Profile,
    Replica,
    Resize,
    Version,
)
from pgpu.services.job_answers import JOBS
from pgpu.services.messages import (
    Ask,
    Bearer,
    Cancel,
    GpuReport,
    JobNames,
    JobReport,
    Judgement,
    LeaseOffer,
    NewFunctionToken,
    NewToken,
    QueueReport,
    QuotaChange,
    ReplicaAsk,
    Rollout,
    SecretReport,
    Shown,
    Signal,
    Stop,
    Together,
    TokenReport,
    UsageReport,
    UserQuota,
    Window,
)
from pgpu.structs import Struct, fields

JOB_ROOT = "/v1/jobs"


class ServiceRoute(Struct, frozen=True, dict=True):
    """One operation as HTTP carries it."""

    name: str
    """Of the operation in `GET /openapi.json`, and of the service's method unless `operation` differs."""

    method: str
    path: str
    answer: Any = None
    """Type of the answer's JSON; None answers 204 without a body."""

    body: type[Any] | None = None
    """Its fields are the operation's arguments."""

    value: type[Any] | None = None
    """Type of a body that is itself the operation's argument."""

    query: tuple[str, ...] = ()
    operation: str = ""
    status: int = 200
    is_repeatable: bool = True
    """Whether a client may send it again when the answer to the first request was lost."""

    is_shared: bool = False
    """Whether the server coalesces concurrent requests of one user."""

    @cached_property
    def path_parameters(self) -> tuple[str, ...]:
        """Names in the path, in order."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that follow those in the path."""
        return (*(field.name for field in fields(self.body)), *self.query) if self.body else self.query


JOB_ROUTES = (
    ServiceRoute("submit", "POST", JOB_ROOT, JOBS, value=Ask, operation="submit_batch", status=201),
    ServiceRoute(
        "dry_run", "POST", f"{JOB_ROOT}/dry-run", tuple[QueueReport, ...], value=Ask, operation="rehearse_batch"
    ),
    ServiceRoute("cancel", "POST", f"{JOB_ROOT}/cancel", JOBS, Cancel, operation="request_cancel"),
    ServiceRoute("hold", "POST", f"{JOB_ROOT}/hold", JOBS, JobNames),
    ServiceRoute("release", "POST", f"{JOB_ROOT}/release", JOBS, JobNames),
    ServiceRoute("look", "GET", f"{JOB_ROOT}/{{job}}", JobReport, operation="job"),
    ServiceRoute("members", "GET", f"{JOB_ROOT}/{{job}}/members", tuple[JobReport, ...]),
    ServiceRoute("stop", "POST", f"{JOB_ROOT}/{{job}}/stop", Job, Stop, operation="request_stop"),
    ServiceRoute("signal", "POST", f"{JOB_ROOT}/{{job}}/signal", None, Signal, is_repeatable=False),
    ServiceRoute("window", "POST", f"{JOB_ROOT}/{{job}}/window", None, Window),
    ServiceRoute("resize", "POST", f"{JOB_ROOT}/{{job}}/resize", Job, Resize),
    ServiceRoute("offer", "POST", f"{JOB_ROOT}/{{job}}/offer", Job, LeaseOffer),
    ServiceRoute("park", "POST", f"{JOB_ROOT}/{{job}}/park", Job),
    ServiceRoute("claim", "POST", f"{JOB_ROOT}/{{job}}/claim", Job),
    ServiceRoute("profiled", "GET", f"{JOB_ROOT}/{{job}}/profile", Profiled),
    ServiceRoute("add_findings", "POST", f"{JOB_ROOT}/{{job}}/profile", Profile, value=Findings),
)

GPU_ROUTES = (
    ServiceRoute("gpus", "GET", "/v1/gpus", tuple[GpuReport, ...], query=("simulate",)),
    ServiceRoute("outsiders", "GET", "/v1/outsiders", tuple[Outsider, ...], query=("simulate",)),
    ServiceRoute("queue", "GET", "/v1/queue", tuple[QueueReport, ...], query=("simulate",), is_shared=True),
    ServiceRoute("advise", "POST", "/v1/advice", Advice, Together, query=("simulate",)),
    ServiceRoute("history", "GET", "/v1/history", tuple[CallHistory, ...], query=("word",)),
    ServiceRoute("gpu_history", "GET", "/v1/gpu-history", tuple[GpuSeries, ...], query=("since_seconds", "gpu_uuid")),
    ServiceRoute("waste", "GET", "/v1/waste", tuple[Waste, ...]),
    ServiceRoute("usage", "GET", "/v1/usage", tuple[UsageReport, ...], query=("since_seconds", "uid", "simulate")),
    ServiceRoute("shares", "GET", "/v1/shares", tuple[UserShare, ...], query=("simulate",), is_shared=True),
)

ADMIN_ROUTES = (
    ServiceRoute("quotas", "GET", "/v1/admin/quotas", tuple[UserQuota, ...]),
    ServiceRoute("set_quota", "POST", "/v1/admin/quotas", value=QuotaChange),
    ServiceRoute("remove_quota", "DELETE", "/v1/admin/quotas/{uid}"),
    ServiceRoute("closed_gpus", "GET", "/v1/admin/closed-gpus", tuple[str, ...]),
    ServiceRoute("close_gpu", "PUT", "/v1/admin/closed-gpus/{uuid}"),
    ServiceRoute("open_gpu", "DELETE", "/v1/admin/closed-gpus/{uuid}", is_repeatable=False),
    ServiceRoute("tokens", "GET", "/v1/admin/tokens", tuple[TokenReport, ...]),
    ServiceRoute(
        "create_token",
        "POST",
        "/v1/admin/tokens",
        NewToken,
        query=("uid", "expires_in_seconds"),
        status=201,
        is_repeatable=False,
    ),
    ServiceRoute("revoke_token", "DELETE", "/v1/admin/tokens/{token}", is_repeatable=False),
)

_FUNCTION = "/v1/functions/{name}"

FUNCTION_ROUTES = (
    ServiceRoute("has_bundle", "GET", "/v1/bundles/{digest}"),
    ServiceRoute(
        "deploy",
        "POST",
        "/v1/functions",
        Version,
        value=Deployment,
        operation="create_version",
        status=201,
        is_repeatable=False,
    ),
    ServiceRoute("functions", "GET", "/v1/functions", tuple[Function, ...]),
    ServiceRoute("function", "GET", _FUNCTION, Function),
    ServiceRoute("undeploy", "DELETE", _FUNCTION, tuple[str, ...], is_repeatable=False),
    ServiceRoute("roll_out", "POST", f"{_FUNCTION}/rollout", Function, value=Rollout, is_repeatable=False),
    ServiceRoute("roll_back", "POST", f"{_FUNCTION}/rollback", Function, is_repeatable=False),
    ServiceRoute("tokens", "GET", f"{_FUNCTION}/tokens", tuple[FunctionToken, ...]),
    ServiceRoute(
        "create_token",
        "POST",
        f"{_FUNCTION}/tokens",
        NewFunctionToken,
        query=("label", "expires_in_seconds"),
        status=201,
        is_repeatable=False,
    ),
    ServiceRoute("revoke_token", "DELETE", f"{_FUNCTION}/tokens/{{token}}", is_repeatable=False),
    ServiceRoute("replicas", "GET", f"{_FUNCTION}/replicas", tuple[Replica, ...]),
    ServiceRoute("cold_starts", "GET", f"{_FUNCTION}/cold-starts", tuple[ColdStart, ...], query=("limit",)),
    ServiceRoute("note_cold_start", "POST", f"{_FUNCTION}/cold-starts", value=ColdStart, is_repeatable=False),
    ServiceRoute("secrets", "GET", "/v1/secrets", tuple[SecretReport, ...]),
    ServiceRoute("remove_secret", "DELETE", "/v1/secrets/{name}", is_repeatable=False),
    ServiceRoute("judge", "POST", f"{_FUNCTION}/judgement", value=Judgement),
    ServiceRoute("bearer", "POST", "/v1/bearers", Bearer, value=Shown),
    ServiceRoute("all_replicas", "GET", "/v1/replicas", tuple[Replica, ...]),
    ServiceRoute("start_replica", "POST", "/v1/replicas", Replica, value=ReplicaAsk, status=201, is_repeatable=False),
    ServiceRoute("build", "POST", "/v1/builds", Job, value=ReplicaAsk, status=201, is_repeatable=False),
    ServiceRoute("note_replica", "PUT", "/v1/replicas/{job}", query=("state",)),
    ServiceRoute("forget_replica", "DELETE", "/v1/replicas/{job}"),
)
