"""The jobs of the view: which of them in which order, their colours, and on which one the mark stands. Pure."""

from collections.abc import Mapping, Sequence

from pgpu.cli.top.job_table import SORT_ORDERS, rows
from pgpu.cli.top.picture import Picture
from pgpu.client import JobReport
from pgpu.palette import DARK


class JobList:
    """Rows, their order and filter, and the one that keys act on."""

    def __init__(self) -> None:
        self.order, self.pattern = SORT_ORDERS[0], ""
        self.rows: Sequence[JobReport] = ()
        self.cursor = 0
        """Place of the mark."""

        self.colours: Mapping[str, str] = {}
        """Of the slices by job id; a job keeps its own, and has the same one on each of its GPUs."""

        self._chosen_id = ""
        self._numbers: dict[str, int] = {}

    @property
    def notes(self) -> str:
        """Order and filter in words."""
        return f"by {self.order.name}" + (f" · /{self.pattern}" if self.pattern else "")

    @property
    def chosen(self) -> JobReport | None:
        """The job under the mark; None without any."""
        return self.rows[self.cursor] if self.rows else None

    def take(self, picture: Picture) -> None:
        """Choose and sort the jobs of a picture; the mark stays on its job while others come and go."""
        self.rows = rows(picture, self.order, self.pattern)
        ids = [report.job.id for report in self.rows]
        # Of other users' jobs all ids are equal.
        if ids.count(self._chosen_id) == 1:
            self.cursor = ids.index(self._chosen_id)
        self.move(0)
        live = [report.job for report in picture.jobs if not report.job.is_anonymous]
        numbers = [self._numbers.setdefault(job.id, len(self._numbers) + 1) for job in live]
        self.colours = {
            job.id: DARK.slices[number % len(DARK.slices)]
            for job, number in zip(live, numbers, strict=True)
            if job.lease is not None
        }

    def move(self, count: int) -> None:
        """Move the mark by some rows, as far as there are any."""
        self.cursor = max(0, min(self.cursor + count, len(self.rows) - 1))
        self._chosen_id = self.rows[self.cursor].job.id if self.rows else ""

    def sort(self, key: str) -> None:
        """Use the order of a key, or the next one without a key."""
        place = next((at for at, each in enumerate(SORT_ORDERS) if key and each.key == key), None)
        following = (SORT_ORDERS.index(self.order) + 1) % len(SORT_ORDERS)
        self.order = SORT_ORDERS[following if place is None else place]
