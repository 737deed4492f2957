"""Advice for jobs that this engine knows: finds their profiles, the kind of GPU and its constants, and asks `advising`.

It refuses to measure: a job without a profile is refused with the words that make one.
"""

from collections.abc import Sequence

from pgpu.advising.advice import Advice, GpuKind, advise
from pgpu.advising.constants_fit import constants_of, key_of, text_of
from pgpu.advising.contention import Constants
from pgpu.engine.engine import Engine
from pgpu.engine.history.link_bandwidths import keep_bandwidths
from pgpu.engine.history.run_history import history_name
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import MODELS
from pgpu.ledger import Ledger, View
from pgpu.model import Bandwidths, Gpu, Job, Profile

_MOST_PROFILES = 2000
_MOST_TOGETHER = 64
"""More clients than any GPU's MPS server takes."""

_SIMULATED = "simulated "


def advise_jobs(
    engine: Engine,
    jobs: Sequence[str | Profile],
    *,
    gpu_model: str | None = None,
    tolerance: float | None = None,
    owner_uid: int | None = None,
) -> Advice:
    """Say how jobs should share a GPU, from profiles of each alone; see `Client.advise`.

    Args:
        engine: Whose ledger and GPUs.
        jobs: Each a profile, or the id or name of a job, or a signature or the beginning of one.
        gpu_model: As users write products; None for that of the engine's first GPU.
        tolerance: As of `advise`.
        owner_uid: Whose profiles alone are looked at; None for everybody's.

    Raises:
        RequestError: There is no profile of one of them on this kind of GPU.
    """
    if len(jobs) < 2:  # noqa: PLR2004 - one job shares with nobody
        raise RequestError("advice is about jobs together", hint="name two jobs or more: pgpu advise JOB JOB…")
    if len(jobs) > _MOST_TOGETHER:
        raise RequestError(f"advice is for at most {_MOST_TOGETHER} jobs together, not {len(jobs)}")
    gpus = engine.gpus.gpus()
    name = _wanted_name(gpu_model, gpus, jobs)
    profiles = [_profile(engine.ledger, job, name, owner_uid) for job in jobs]
    return advise(profiles, kind_of(name, gpus), constants=constants_for(engine, name, gpus), tolerance=tolerance)


def kind_of(name: str, gpus: Sequence[Gpu]) -> GpuKind:
    """Return what advice must know of a kind of GPU.

    Args:
        name: As profiles are remembered under.
        gpus: Of this machine; a kind that is not among them is looked up among known products.
    """
    here = next((gpu for gpu in gpus if history_name(gpu) == name), None)
    if here is not None:
        return GpuKind(name, here.compute_capability, is_instance=here.is_instance)
    product = next((model for model in MODELS if model.name == name.removeprefix(_SIMULATED)), None)
    capability = None if product is None else (product.capability.major, product.capability.minor)
    return GpuKind(name, capability)


def constants_for(engine: Engine, name: str, gpus: Sequence[Gpu]) -> Constants:
    """Return what was calibrated on a kind of GPU under its present driver, else the defaults."""
    here = next((gpu for gpu in gpus if history_name(gpu) == name), None)
    kept = None if here is None else engine.ledger.facts.get(key_of(name, here.driver_version))
    return Constants() if kept is None else constants_of(kept)


def check_calibration(engine: Engine) -> None:
    """Find out whether there is anything to calibrate.

    Raises:
        RequestError: There is no GPU.
    """
    if not engine.gpus.gpus():
        raise RequestError("there is no GPU here", hint='--simulate "RTX 3090" before the verb simulates one')


def keep_constants(engine: Engine, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:
    """Keep what was calibrated on one of the engine's GPUs: constants for its model and driver, bandwidths for itself.

    Raises:
        RequestError: There is no such GPU.
    """
    gpu = next((each for each in engine.gpus.gpus() if each.uuid == gpu_uuid), None)
    if gpu is None:
        raise RequestError(f"there is no GPU {gpu_uuid} here", hint="pgpu gpus lists them")
    engine.ledger.facts.put(key_of(history_name(gpu), gpu.driver_version), text_of(constants))
    keep_bandwidths(engine, gpu, bandwidths)


def _wanted_name(gpu_model: str | None, gpus: Sequence[Gpu], jobs: Sequence[str | Profile]) -> str:
    if gpu_model is None:
        told = next((job.gpu_name for job in jobs if isinstance(job, Profile)), None)
        if told is None and not gpus:
            raise RequestError("there is no GPU here", hint="--gpu MODEL names one, such as --gpu 'RTX 3090'")
        return told or history_name(gpus[0])
    product = parse_model(gpu_model)[0].name
    names = {history_name(gpu) for gpu in gpus} | {job.gpu_name for job in jobs if isinstance(job, Profile)}
    return product if product in names else f"{_SIMULATED}{product}" if f"{_SIMULATED}{product}" in names else product


def _profile(ledger: Ledger, job: str | Profile, gpu_name: str, owner_uid: int | None) -> Profile:
    if isinstance(job, str):
        return _remembered(ledger, job, gpu_name, owner_uid)
    if job.gpu_name != gpu_name:
        raise RequestError(
            f"the profile of {job.signature} was measured on {job.gpu_name}, not on {gpu_name}",
            hint="profiles tell of the kind of GPU that they were measured on: run pgpu profile there",
        )
    return job


def _remembered(ledger: Ledger, word: str, gpu_name: str, owner_uid: int | None) -> Profile:
    """Look for a job's own profile, then for one of its program, then for a signature of this name or beginning."""
    job = _job(ledger, word, owner_uid)
    with ledger.view() as view:
        found = None if job is None else _of_job(view, job, gpu_name)
        found = found or _of_signature(view, word, gpu_name, owner_uid)
    if found is None:
        raise RequestError(
            f"there is no profile of {word!r} on {gpu_name}", hint="measure it: pgpu profile --sensitivity -- COMMAND"
        )
    return found


def _job(ledger: Ledger, word: str, owner_uid: int | None) -> Job | None:
    try:
        return ledger.find(word, owner_uid).job
    except JobNotFoundError:
        return None


def _of_job(view: View, job: Job, gpu_name: str) -> Profile | None:
    own = view.profiles.of_job(job.id)
    if own is not None and own.gpu_name == gpu_name:
        return view.profiles.with_findings(own)
    return view.profiles.newest(job.signature, gpu_name, job.owner_uid)


def _of_signature(view: View, word: str, gpu_name: str, owner_uid: int | None) -> Profile | None:
    here = [each for each in view.profiles.all(owner_uid, _MOST_PROFILES) if each.gpu_name == gpu_name]
    same = [each for each in here if each.signature == word]
    begun = [each for each in here if each.signature.startswith(word)]
    if not same and len({each.signature for each in begun}) > 1:
        raise RequestError(f"several programs begin with {word!r}", hint="write more of the signature")
    return next(iter(same or begun), None)
