"""Advice on sharing for jobs of this ledger, and the calibration results that it needs.

Finds the jobs' profiles, the kind of GPU and its calibrated constants, and applies `pgpu.advising`. Nothing is measured here:
a job without a profile is refused with the command that makes one.
"""

import json
from collections.abc import Sequence

from pgpu.advising.advice import Advice, GpuKind, advise
from pgpu.advising.constants_fit import constants_of, key_of, text_of
from pgpu.advising.contention import Constants
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import history_name
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import MODELS
from pgpu.ledger import Ledger, LedgerView
from pgpu.model import Bandwidths, Gpu, Profile
from pgpu.structs import to_builtins

_MOST_PROFILES = 2000
_MOST_TOGETHER = 64
"""More clients than the MPS server of any GPU accepts."""

_SIMULATED = "simulated "


def advise_jobs(
    context: EngineContext,
    jobs: Sequence[str | Profile],
    *,
    gpu_model: str | None = None,
    tolerance: float | None = None,
    owner_uid: int | None = None,
) -> Advice:
    """Advise how jobs should share a GPU, from profiles of each one alone; see `JobService.advise`.

    Args:
        context: Of the ledger and the GPUs.
        jobs: Each a profile, a job's id or name, or a signature or its beginning.
        gpu_model: As users write products; None for that of the first GPU here.
        tolerance: As of `advise`.
        owner_uid: Only profiles of this user are read; None for all users.

    Raises:
        RequestError: There is no profile of one of them on this kind of GPU.
    """
    if len(jobs) < 2:  # noqa: PLR2004 - one job shares with no other
        raise RequestError("advice is about jobs together", hint="name two jobs or more: pgpu advise JOB JOB…")
    if len(jobs) > _MOST_TOGETHER:
        raise RequestError(f"advice is for at most {_MOST_TOGETHER} jobs together, not {len(jobs)}")
    gpus = context.gpus.gpus()
    name = _choose_gpu_name(gpu_model, gpus, jobs)
    profiles = [_find_profile(context.ledger, job, name, owner_uid) for job in jobs]
    here = next((gpu for gpu in gpus if history_name(gpu) == name), None)
    kept = None if here is None else context.ledger.facts.get(key_of(name, here.driver_version))
    constants = Constants() if kept is None else constants_of(kept)
    return advise(profiles, kind_of(name, gpus), constants=constants, tolerance=tolerance)


def kind_of(name: str, gpus: Sequence[Gpu]) -> GpuKind:
    """Return the properties of a kind of GPU that advice depends on.

    Args:
        name: As in the history.
        gpus: Of this machine; a kind that is not among them is looked up in the table of products.
    """
    here = next((gpu for gpu in gpus if history_name(gpu) == name), None)
    if here is not None:
        return GpuKind(name, here.compute_capability, is_instance=here.is_instance)
    product = next((model for model in MODELS if model.name == name.removeprefix(_SIMULATED)), None)
    capability = None if product is None else (product.capability.major, product.capability.minor)
    return GpuKind(name, capability)


def _choose_gpu_name(gpu_model: str | None, gpus: Sequence[Gpu], jobs: Sequence[str | Profile]) -> str:
    profiled = [job.gpu_name for job in jobs if isinstance(job, Profile)]
    if gpu_model is None:
        if not profiled and not gpus:
            raise RequestError("there is no GPU here", hint="--gpu MODEL names one, such as --gpu 'RTX 3090'")
        return profiled[0] if profiled else history_name(gpus[0])
    # Simulated GPUs have a history of their own; a name means the real model where both are known.
    product = parse_model(gpu_model)[0].name
    names = {history_name(gpu) for gpu in gpus} | set(profiled)
    return product if product in names else f"{_SIMULATED}{product}" if f"{_SIMULATED}{product}" in names else product


def _find_profile(ledger: Ledger, job: str | Profile, gpu_name: str, owner_uid: int | None) -> Profile:
    """Return a job's own profile, else one of its program, else one of a signature with this name or beginning."""
    if isinstance(job, Profile):
        if job.gpu_name != gpu_name:
            raise RequestError(
                f"the profile of {job.signature} was measured on {job.gpu_name}, not on {gpu_name}",
                hint="a profile holds for the kind of GPU that it was measured on: run pgpu profile there",
            )
        return job
    try:
        named = ledger.find(job, owner_uid).job
    except JobNotFoundError:
        named = None
    with ledger.view() as view:
        found = None
        if named is not None:
            own = view.profiles.of_job(named.id)
            if own is not None and own.gpu_name == gpu_name:
                found = view.profiles.with_findings(own)
            else:
                found = view.profiles.newest(named.signature, gpu_name, named.owner_uid)
        found = found or _find_by_signature(view, job, gpu_name, owner_uid)
    if found is None:
        raise RequestError(
            f"there is no profile of {job!r} on {gpu_name}", hint="measure it: pgpu profile --sensitivity -- COMMAND"
        )
    return found


def _find_by_signature(view: LedgerView, word: str, gpu_name: str, owner_uid: int | None) -> Profile | None:
    here = [each for each in view.profiles.all(owner_uid, _MOST_PROFILES) if each.gpu_name == gpu_name]
    same = [each for each in here if each.signature == word]
    begun = [each for each in here if each.signature.startswith(word)]
    if not same and len({each.signature for each in begun}) > 1:
        raise RequestError(f"several programs begin with {word!r}", hint="write more of the signature")
    return next(iter(same or begun), None)


# Results of `pgpu calibrate`: constants for a GPU's model and driver, bandwidths for one GPU.


def check_calibration(context: EngineContext) -> None:
    """Raise RequestError if there is no GPU to calibrate."""
    if not context.gpus.gpus():
        raise RequestError("there is no GPU here", hint='--simulate "RTX 3090" before the verb simulates one')


def keep_constants(context: EngineContext, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:
    """Store the results for one GPU.

    Raises:
        RequestError: There is no such GPU.
    """
    gpu = next((each for each in context.gpus.gpus() if each.uuid == gpu_uuid), None)
    if gpu is None:
        raise RequestError(f"there is no GPU {gpu_uuid} here", hint="pgpu gpus lists them")
    context.ledger.facts.put(key_of(history_name(gpu), gpu.driver_version), text_of(constants))
    keep_bandwidths(context.ledger, gpu, bandwidths)


def keep_bandwidths(ledger: Ledger, gpu: Gpu, measured: Bandwidths) -> None:
    """Store a GPU's bandwidths under its present driver; those under other drivers are removed."""
    ledger.facts.put_for(f"bandwidths/{gpu.uuid}/", gpu.driver_version, json.dumps(to_builtins(measured)), 0.0)


def swap_bytes_per_second(ledger: Ledger, gpu: Gpu) -> float | None:
    """Return the rate at which memory moves to and from a GPU at the same time: measured, else that of its PCIe link.

    None if neither is known.
    """
    kept = ledger.facts.get(f"bandwidths/{gpu.uuid}/{gpu.driver_version}")
    return gpu.link_bytes_per_second if kept is None else Bandwidths(**json.loads(kept)).swap
