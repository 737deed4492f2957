"""Looks at what pgpu needs of this machine and says how to mend what is missing.

It changes nothing that lasts: trials run in a state directory of their own that is removed again.
"""

from pgpu.app.doctor.examination import examine
from pgpu.model.finding import Finding, Result

__all__ = ["Finding", "Result", "examine"]
