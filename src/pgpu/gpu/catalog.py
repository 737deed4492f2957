"""Parser of the names of simulated GPUs: `RTX 3090`, `rtx3090x4`, `A100-80 x 2`, `H100 mig 1g.10gb+3g.40gb`.

`RTX 3090 cgroup` has a driver that limits control groups. `GTX 980 Ti paging` is an imaginary card: its memory and figures, with
page faults, which real GPUs have since the next generation.
"""

import re
from collections.abc import Sequence

from pgpu.errors import RequestError
from pgpu.gpu.mig_profiles import parse_division
from pgpu.gpu.products import MODELS, GpuModel
from pgpu.structs import replace

# Most GPUs in a limit file (native/include/meter_abi.h).
LARGEST_COUNT = 16

# Major compute capability. Source: CUDA C Programming Guide, "Unified Memory".
_FIRST_THAT_PAGES = 6

# NVML's nvmlDeviceArchitecture_t.
_PASCAL = 4

_BRANDS = re.compile(r"^(nvidia|geforce|tesla)+")

# Texts, compiled where they are used: each compilation takes as long as a hundred look-ups of a model.
_DIVIDED = r"(?P<model>.+?)[\s-]+mig[\s-]+(?P<instances>[\w.+\s]+?)(?:\s*[x×]\s*(?P<count>\d+))?\s*"
_LIMITING = r"(?P<model>.+?)[\s-]+cgroup(?:\s*[x×]\s*(?P<count>\d+))?\s*"
_PAGING = r"(?P<model>.+?)[\s-]+paging(?:\s*[x×]\s*(?P<count>\d+))?\s*"
_COUNTED = r"(?P<model>.+)[x×]\s*(?P<count>\d+)\s*"

# Suffix of the name of an imaginary card.
IMAGINARY = " with paging (imaginary)"


def parse_model(text: str) -> tuple[GpuModel, int]:
    """Parse model and count of simulated GPUs.

    Case, spaces, hyphens and NVIDIA's brand names are ignored. `cgroup` behind the model means that its driver limits control
    groups, `paging` that it moves memory while kernels run, which GPUs before Pascal do not.

    Returns:
        The model, with its MIG instances if any, and the count, 1-16.

    Raises:
        RequestError: Unknown model (the known ones are listed), a count out of range, or unknown instances.
    """
    # The whole text first: `rtx3090` also matches as 3,090 GPUs of a model `rt`.
    single = _by_word(text)
    if single is not None:
        return single, 1
    limiting = _match(_LIMITING, text.strip())
    if limiting:
        model = _known_model(limiting["model"])
        count = _checked_count(int(limiting["count"] or 1), model)
        return replace(model, slug=f"{model.slug}-cgroup", limits_cgroups=True), count
    paging = _match(_PAGING, text.strip())
    if paging:
        return _paging(paging["model"], int(paging["count"] or 1))
    divided = _match(_DIVIDED, text.strip())
    if divided:
        return _divided(divided["model"], divided["instances"], int(divided["count"] or 1))
    counted = _match(_COUNTED, text)
    several = _by_word(counted["model"]) if counted else None
    if counted is None or several is None:
        raise _unknown(text)
    return several, _checked_count(int(counted["count"]), several)


def _match(pattern: str, text: str) -> "re.Match[str] | None":
    return re.fullmatch(pattern, text, re.IGNORECASE | re.ASCII)


def model_named(name: str) -> GpuModel | None:
    """Return the product with this NVML name; None if it cannot be simulated."""
    return next((model for model in MODELS if model.name == name), None)


def known_models() -> Sequence[str]:
    """Return the slug of every model, such as `rtx-3090`."""
    return [model.slug for model in MODELS]


def _divided(word: str, instances: str, count: int) -> tuple[GpuModel, int]:
    whole = _known_model(word)
    found = parse_division(whole.slug, instances)
    slug = f"{whole.slug}-mig-{'+'.join(instance.name for instance in found)}"
    model = replace(whole, slug=slug, instances=found)
    most = LARGEST_COUNT // (1 + len(found))
    if not 1 <= count <= most:
        raise RequestError(f"{count} GPUs with these instances cannot be simulated", hint=f"ask for 1 to {most}")
    return model, count


def _paging(word: str, count: int) -> tuple[GpuModel, int]:
    model = _known_model(word)
    if model.capability.major >= _FIRST_THAT_PAGES:
        raise RequestError(f"{model.name} pages already", hint=f"write {model.slug}")
    capability = replace(model.capability, major=_FIRST_THAT_PAGES, minor=0, architecture=_PASCAL)
    slug, name = f"{model.slug}-paging", f"{model.name}{IMAGINARY}"
    return replace(model, slug=slug, name=name, capability=capability), _checked_count(count, model)


def _known_model(word: str) -> GpuModel:
    model = _by_word(word)
    if model is None:
        raise _unknown(word)
    return model


def _unknown(text: str) -> RequestError:
    return RequestError(f"no GPU model {text.strip()!r} is known", hint=f"known: {', '.join(known_models())}")


def _checked_count(count: int, model: GpuModel) -> int:
    if not 1 <= count <= LARGEST_COUNT:
        raise RequestError(
            f"{count} simulated GPUs are not possible", hint=f"ask for {model.slug}x1 to {model.slug}x{LARGEST_COUNT}"
        )
    return count


def _by_word(text: str) -> GpuModel | None:
    bare = _BRANDS.sub("", _normalised(text))
    for model in MODELS:
        slug = _normalised(model.slug)
        if bare in {slug, f"{slug}gb", _BRANDS.sub("", _normalised(model.name))}:
            return model
    return None


def _normalised(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.casefold())
