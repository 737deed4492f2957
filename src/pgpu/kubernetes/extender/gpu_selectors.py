"""Which GPUs a pod and its claims admit: selectors of nodes by labels, and CEL selectors of devices as far as they can be read.

CEL's operators are rewritten into Python's, the expression is parsed by `ast`, and the nodes of its tree that are known here are
evaluated; nothing is executed. The logic has three values, as in SQL: whatever is not known (another function, an attribute that is not
kept, a type that does not fit) makes its comparison unknown, and `&&` and `||` go on with the rest.

Sources: https://kubernetes.io/docs/reference/using-api/cel/, and CELDeviceSelector of resource.k8s.io/v1; NodeSelectorRequirement of
core/v1.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from lightkube.utils.quantity import parse_quantity

# A text, which stays, or an operator that Python writes differently. `~` binds as tightly as CEL's `!`; Python's `not` does not.
_TOKEN = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|&&|\|\||!=|!|\btrue\b|\bfalse\b""")
_PYTHON = {"&&": " and ", "||": " or ", "!=": "!=", "!": "~", "true": "True", "false": "False"}

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
}
_METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "compareTo": lambda one, other: (one > other) - (one < other),
    "isGreaterThan": operator.gt,
    "isLessThan": operator.lt,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}


class LabelRequirement(NamedTuple):
    """What a label of a node must be."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


NodeSelector = tuple[tuple[LabelRequirement, ...], ...]
"""One of the terms must hold, and all requirements of this term; without terms all nodes are admitted."""

_LABEL_OPERATORS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: value is not None and int(value) > int(values[0]),
    "Lt": lambda value, values: value is not None and int(value) < int(values[0]),
}


def admits_node(selector: NodeSelector, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is admitted; a requirement that cannot be read is not met."""
    return not selector or any(all(_is_met(one, labels.get(one.key)) for one in term) for term in selector)


def _is_met(requirement: LabelRequirement, value: str | None) -> bool:
    try:
        return _LABEL_OPERATORS[requirement.operator](value, requirement.values)
    except (LookupError, ValueError):
        return False


def parse_version(text: str) -> tuple[int, ...]:
    """Parse a semantic version without a suffix.

    Raises:
        ValueError: It is none.
    """
    return tuple(map(int, text.split(".")))


_FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "quantity": parse_quantity,
    "semver": parse_version,
}


def admits_device(expression: str, device: Mapping[str, Any]) -> bool:
    """Return False if a selector surely excludes a device; True also where that is unknown.

    Args:
        expression: CEL, which selects if it is true.
        device: Its fields, by the names that they have in CEL. Versions are tuples, quantities as `parse_quantity` returns them.
    """
    try:
        return _value(_parse(expression), device) is not False
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


@lru_cache(maxsize=1024)  # the claims of a template repeat the same ones
def _parse(expression: str) -> ast.expr:
    python = _TOKEN.sub(lambda found: found["text"] or _PYTHON[found[0]], expression)
    return ast.parse(f"({python})", mode="eval").body


def _value(tree: ast.expr, device: Mapping[str, Any]) -> Any:
    """Return the value of an expression; None: it is unknown."""
    if isinstance(tree, ast.BoolOp):
        values = [_value(each, device) for each in tree.values]
        decisive = isinstance(tree.op, ast.Or)
        if any(value is decisive for value in values):
            return decisive
        return None if any(not isinstance(value, bool) for value in values) else not decisive
    try:
        return _known_value(tree, lambda part: _value(part, device), device)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return None


def _known_value(  # noqa: PLR0911 - one for each kind of expression
    tree: ast.expr, value_of: Callable[[ast.expr], Any], device: Mapping[str, Any]
) -> Any:
    # An unknown part, None, fits no operator and raises TypeError, except those that compare anything.
    match tree:
        case ast.Constant(value):
            return value
        case ast.Name("device"):
            return device
        case ast.Attribute(whole, name):
            return value_of(whole)[name]
        case ast.Subscript(whole, index):
            return value_of(whole)[value_of(index)]
        case ast.List(parts):
            return [value_of(part) for part in parts]
        case ast.UnaryOp(ast.Invert(), part) if isinstance(value := value_of(part), bool):
            return not value
        case ast.Compare(left, [comparison], [right]) if (one := value_of(left)) is not None:
            other = value_of(right)
            return None if other is None else _COMPARISONS[type(comparison)](one, other)
        case ast.Call(ast.Name(name), [part]):
            return _FUNCTIONS[name](value_of(part))
        case ast.Call(ast.Attribute(whole, name), [part]):
            return _METHODS[name](value_of(whole), value_of(part))
    return None
