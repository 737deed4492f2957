"""Numbers of jobs on the command line are read or refused in one line."""

import pytest

from pgpu.cli.verbs.lab import _read_counts
from pgpu.errors import RequestError


@pytest.mark.parametrize(("text", "counts"), [("25", (25,)), ("2-4", (2, 3, 4)), ("8,24-25", (8, 24, 25)), ("1", (1,))])
def test_numbers_of_jobs_are_read(text: str, counts: tuple[int, ...]) -> None:
    assert _read_counts(text) == counts


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "3-", "5-2", "1-100000", "2,,3", "٣x"])
def test_what_is_no_number_of_jobs_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        _read_counts(text)
