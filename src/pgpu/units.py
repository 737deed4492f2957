r"""Human text: parsing and formatting of bytes, durations and shares, and strings with undecodable bytes.

Everywhere else a quantity is a plain number with its unit in the name. Ambiguous input is rejected: `4G` may mean 10⁹ or 2³⁰,
and the share `1` may mean 1 % or 100 %. A bare number of memory is bytes.

Linux allows any bytes in names, arguments and environments. Python carries each undecodable byte as a lone surrogate (PEP 383)
and gives the byte back to the kernel; SQLite, container engines and terminals accept UTF-8 only. In messages such a byte is
written as `\xff`.
"""

import os
import re
import time
from operator import mul

from pgpu.errors import RequestError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# A bare number below this is rejected, since its unit was probably forgotten.
SMALLEST_SLICE_BYTES = MIB

_BINARY_PREFIXES = {"k": 1, "m": 2, "g": 3, "t": 4}

# At most 18 digits: longer numbers are no valid amounts, and Python does not parse 5,000 digits.
_NUMBER = r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)"

_MEMORY = re.compile(_NUMBER + r"\s*(?P<unit>[A-Za-z]*)")
_DURATION = re.compile(_NUMBER + r"(?P<unit>ms|s|m|h|d)?")
_SLURM_DURATION = re.compile(r"(?:(?P<days>[0-9]{1,6})-)?(?P<parts>[0-9]{1,9}(?::[0-9]{1,2}){0,2})")
_SLURM_UNIT = re.compile(r"(second|minute|hour|day)s?$")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_SHARE = re.compile(_NUMBER + r"\s*(?P<percent>%)?")
_LONGEST_QUOTE = 40
_MOST_DIGITS = 18
_DURATION_UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}

# 1 %: a millisecond of each period of 100 ms.
SMALLEST_COMPUTE_SHARE = 0.01

_SHARE_EXAMPLES = "write it like 30% or 0.3"
_EXAMPLES = "write it like 4GiB, 1205MiB, 4g (2³⁰) or 4GB (10⁹)"


def parse_memory_bytes(text: str) -> int:
    """Parse an amount of memory for a slice.

    `4GiB`, `4Gi` and `4g` are 4 · 2³⁰ bytes, `4GB` is 4 · 10⁹; a bare number is bytes.

    Returns:
        Bytes, at least 1 MiB.

    Raises:
        RequestError: Not an amount, ambiguous (`4G`), not positive, or below 1 MiB.
    """
    memory_bytes = parse_bytes(text)
    if memory_bytes < SMALLEST_SLICE_BYTES:
        raise RequestError(f"{quoted(text)} is less than 1 MiB, the smallest slice", hint=_EXAMPLES)
    return memory_bytes


def parse_bytes(text: str) -> int:
    """Parse a number of bytes in the same units, without the minimum of a slice, such as a body limit of `512KiB`.

    Raises:
        RequestError: Not an amount, or ambiguous (`4G`).
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{quoted(text)} is not an amount of memory", hint=_EXAMPLES)
    # In integers: a float would lose bytes of large amounts.
    whole, _, fraction = match["number"].partition(".")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * _unit_bytes(match["unit"], text) // scale


def is_number(text: str) -> bool:
    """Whether a text is decimal digits that `int` can read, which raises an error above 4,300 digits."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def quoted(text: str) -> str:
    """Return user input in quotes for a message, cut to 40 characters."""
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]!r}…"


def _unit_bytes(unit: str, text: str) -> int:
    if unit in {"", "B", "b"}:
        return 1
    power = _BINARY_PREFIXES.get(unit[0].lower())
    rest = unit[1:]
    if power is None or rest not in {"", "B", "i", "iB", "ib"}:
        raise RequestError(f"{quoted(text)} is not an amount of memory", hint=_EXAMPLES)
    if rest == "" and unit.isupper():
        raise RequestError(
            f"{quoted(text)} is ambiguous as an amount",
            hint=f"write {unit}iB for powers of 1024 or {unit}B for powers of 1000",
        )
    base = 1000 if rest == "B" else KIB
    return int(base**power)


def parse_compute_share(text: str) -> float:
    """Parse a share of a GPU's time: `30%`, or `0.3`.

    Returns:
        Above 0 to 1, in whole millionths.

    Raises:
        RequestError: Not a share, ambiguous (`30`, `1`), below 1 % or above 100 %.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{quoted(text)} is not a share of a GPU's time", hint=_SHARE_EXAMPLES)
    if match["percent"] is None and "." not in match["number"]:
        raise RequestError(
            f"{quoted(text)} is ambiguous as a share",
            hint=f"write {quoted(text)[1:-1]}% for hundredths, or 0.3 for 30%",
        )
    share = round(float(match["number"]) / (100 if match["percent"] else 1), 6)
    if not SMALLEST_COMPUTE_SHARE <= share <= 1:
        raise RequestError(f"{quoted(text)} is not between 1% and 100%", hint=_SHARE_EXAMPLES)
    return share


def format_share(share: float) -> str:
    """Format a share: `30%`, `33.33%`."""
    return f"{round(share * 100, 2):g}%"


def format_memory(memory_bytes: int) -> str:
    """Format bytes with a binary unit: `2 GiB`, `1205 MiB`, `512 KiB`, `17 B`."""
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if memory_bytes >= unit_bytes:
            amount = f"{memory_bytes / unit_bytes:.2f}".rstrip("0").rstrip(".")
            return f"{amount} {unit}"
    return f"{memory_bytes} B"


def format_use(used_bytes: int, limit_bytes: int) -> str:
    """Format used memory and its limit in the unit of the limit: `1.5/4 GiB`, `641/1205 MiB`."""
    limit, unit = format_memory(limit_bytes).split()
    used = used_bytes / {"GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}[unit]
    return f"{used:.0f}/{limit} {unit}" if used >= 100 else f"{used:.3g}/{limit} {unit}"  # noqa: PLR2004 - three digits


def parse_duration_seconds(text: str) -> float:
    """Parse a duration: `30s`, `5m`, `1.5h`, `250ms`; a bare number is seconds.

    Raises:
        RequestError: Not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise RequestError(f"{quoted(text)} is not a duration", hint="write it like 30s, 5m or 1.5h")
    return float(match["number"]) * _DURATION_UNITS_SECONDS[match["unit"]]


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units: `3s`, `5m 10s`, `2h 3m`, `4d 1h`."""
    total = max(0, int(seconds))
    parts = [(total // 86400, "d"), (total // 3600 % 24, "h"), (total // 60 % 60, "m"), (total % 60, "s")]
    shown = [f"{amount}{unit}" for amount, unit in parts if amount]
    return " ".join(shown[:2]) or "0s"


def parse_time_limit_seconds(text: str) -> float:
    """Parse a time limit: a duration with its unit, or as in Slurm `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`.

    Raises:
        RequestError: Neither, or a bare number, which is minutes in Slurm and seconds elsewhere.
    """
    word = text.strip()
    match = _SLURM_DURATION.fullmatch(word)
    if match is None:
        return parse_duration_seconds(word)
    days, parts = match["days"], [int(each) for each in match["parts"].split(":")]
    if days is None and len(parts) == 1:
        raise RequestError(
            f"{quoted(text)} is ambiguous as a time limit",
            hint=f"write {quoted(word)[1:-1]}m for minutes, as Slurm counts, or {quoted(word)[1:-1]}s",
        )
    units_seconds = (3600, 60, 1) if days is not None or len(parts) > 2 else (60, 1)  # noqa: PLR2004 - HH:MM:SS
    return float(86_400 * int(days or 0) + sum(map(mul, parts, units_seconds)))


def parse_time(text: str, now_seconds: float) -> float:
    """Parse a time of this machine's zone: `16:00`, the next one, `2026-11-30T08:00`, or `now+2h`.

    Args:
        text: A date or time of ISO 8601, which may have an offset, or a duration behind `now+`, also in Slurm's words (`now+2hours`).
        now_seconds: Seconds since the epoch.

    Returns:
        Seconds since the epoch.

    Raises:
        RequestError: It is none of these.
    """
    word = text.strip()
    if word.startswith("now+"):
        return now_seconds + parse_duration_seconds(_SLURM_UNIT.sub(lambda found: found[1][0], word[4:]))
    try:
        if (clock := _CLOCK.fullmatch(word)) is None:
            return _parse_iso_time(word)
        today = time.strftime("%Y-%m-%d", time.localtime(now_seconds))
        at_seconds = _parse_iso_time(f"{today} {clock[1]:0>2}:{clock[2]}:{clock[3] or '00'}")
        if at_seconds > now_seconds:
            return at_seconds
        year, month, day, hour, minute, second, *_ = time.localtime(at_seconds)
        return time.mktime((year, month, day + 1, hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError, OSError):
        raise RequestError(
            f"{quoted(text)} is not a time", hint="write it like 16:00, 2026-11-30T08:00 or now+2h"
        ) from None


def parse_past_time(text: str, now_seconds: float) -> float:
    """Parse a time of the past: a duration back from now, such as `7d`, or a date or time of ISO 8601.

    Raises:
        RequestError: It is neither.
    """
    if _DURATION.fullmatch(text.strip()):
        return max(0.0, now_seconds - parse_duration_seconds(text))
    try:
        return _parse_iso_time(text)
    except (ValueError, OverflowError, OSError):
        raise RequestError(f"{quoted(text)} is no time of the past", hint="write it like 7d or 2026-11-01") from None


def _parse_iso_time(text: str) -> float:
    from datetime import datetime  # noqa: PLC0415 - few commands name a time

    return datetime.fromisoformat(text.strip()).timestamp()


def format_time(seconds: float) -> str:
    """Format a time in this machine's zone: `2026-11-30 08:00:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def is_text(word: str) -> bool:
    """Whether a string can be encoded as UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def composed(name: str) -> str:
    """Return a name in Unicode's composed form: keyboards and file systems write one letter in several ways."""
    if name.isascii():
        return name
    from unicodedata import normalize  # noqa: PLC0415 - most names are of ASCII

    return normalize("NFC", name)


def is_bytes(word: str) -> bool:
    """Whether a string can be passed to the kernel: any bytes without a zero byte."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def escape_undecodable(words: str) -> str:
    r"""Return a string as UTF-8 text, each undecodable byte written as `\xff`."""
    if is_text(words):
        return words
    # PEP 383: byte b becomes U+DC00 + b, for b from 0x80 on. Any other lone surrogate came from a client, such as in JSON.
    codes = ((each, ord(each)) for each in words)
    return "".join(
        each if is_text(each) else f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"  # noqa: PLR2004 - PEP 383's range
        for each, code in codes
    )
