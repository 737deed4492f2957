"""Kubernetes' quantities, such as `30Gi`, as whole numbers and back. It refuses fractions of what has none: they are rounded up."""

import math

from lightkube.utils.quantity import parse_quantity

from pgpu.errors import ClusterError
from pgpu.units import GIB, MIB, quoted

_UNITS = ((GIB, "Gi"), (MIB, "Mi"))


def whole_number(quantity: str) -> int:
    """Read a quantity: `30Gi` is 32212254720, `500m` is 1, since who asks for a part is not served by none.

    Raises:
        ClusterError: It is no quantity.
    """
    try:
        amount = parse_quantity(quantity)
    except ValueError as exc:
        raise ClusterError(f"the API server says {quoted(quantity)}, which is no quantity") from exc
    return 0 if amount is None else math.ceil(amount)


def quantity_of(amount: int) -> str:
    """Write a number as the API server itself would write it: `30Gi`, `1536Mi`, `100`."""
    for unit_bytes, unit in _UNITS:
        if amount and amount % unit_bytes == 0:
            return f"{amount // unit_bytes}{unit}"
    return str(amount)
