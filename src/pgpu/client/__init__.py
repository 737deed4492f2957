"""Clients of pgpu: one `Client` protocol for an engine in this process and for a server over HTTP."""

from pgpu.client.protocol import Client
from pgpu.engine.history.usage_records import CallHistory, UserShare, Waste
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.services.messages import GpuReport, JobReport, QueueReport, UsageReport

__all__ = [
    "CallHistory",
    "Client",
    "GpuReport",
    "GpuTime",
    "JobReport",
    "QueueReport",
    "UsageReport",
    "UserShare",
    "Waste",
]
