"""What is asked for becomes what is requested: pgpu names the program, and chooses the size where it shall."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pgpu.engine.history.run_history import GROWTH_WISHES
from pgpu.engine.submission.program_signature import signature_of_job
from pgpu.engine.submission.submitter import Submitter
from pgpu.model import JobSpec, Submission

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine


def choose_size(engine: "Engine", submission: Submission, asker: Submitter) -> Submission:
    """Return a submission with its program's signature and, where pgpu shall choose, its size.

    Raises:
        RequestError: There is no such runtime or image.
        NodeError: The GPUs or the container engine cannot be read.
    """
    spec, request = submission.spec, submission.request
    if not spec.command and spec.image is None:
        return submission
    image_id = engine.runtime(spec.runtime).image_id(spec) if spec.image is not None else ""
    signature = signature_of_job(spec, image_id)
    gpus = engine.gpus.gpus() if request.is_estimated else ()
    with engine.ledger.view() as view:
        request = engine.learning.chosen(view, request, signature, asker.uid, gpus)
    spec = _wishing_growth(spec, asker) if request.is_estimated else spec
    return replace(submission, spec=spec, request=request, signature=signature)


def _wishing_growth(spec: JobSpec, asker: Submitter) -> JobSpec:
    """What the asker set stays: in the call, or for a process in their own environment."""
    inherited = asker.environment if spec.image is None else ()
    named = {name for name, _ in (*spec.environment, *inherited)}
    wishes = tuple(wish for wish in GROWTH_WISHES if wish[0] not in named)
    return replace(spec, environment=(*spec.environment, *wishes))
