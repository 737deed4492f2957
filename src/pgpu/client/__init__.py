"""What a caller may ask of pgpu: one protocol, so that the command line never knows who answers.

Today one form exists: the engine in this process (`embedded`). This room refuses to print and to read settings.
"""

from pgpu.client.protocol import Client, GpuReport, JobReport, QueueReport
from pgpu.engine.history.usage_records import CallHistory, Waste
from pgpu.engine.watch.gpu_time import GpuTime

__all__ = ["CallHistory", "Client", "GpuReport", "GpuTime", "JobReport", "QueueReport", "Waste"]
