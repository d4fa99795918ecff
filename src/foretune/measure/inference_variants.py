"""Ways to sample from one model, measured in turns and compared with the first: speed, memory, start-up and quality.

Every repeat is a fresh process. What was measured is kept beside the others, so that a stopped comparison goes on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretune.choices.inference import VARIANT_KEYS, MeasuredForm, VariantChoices, check_form, form_of
from foretune.core.errors import UnknownName, UserError
from foretune.core.input_files import MOST_JSON_BYTES, read_json
from foretune.core.observer import Observer
from foretune.measure.bench_request import InferenceRequest
from foretune.measure.fresh_process import MeasurementFailed, ask_fresh_process, memory_limit_bytes
from foretune.record.atomic import write_text
from foretune.stats.break_even import BreakEven, break_even

IMAGES_FILE = "images.safetensors"
_NOT_ASKED = ("images_file", "memory_limit_bytes")
"""What differs between machines and folders without making it another measurement."""


@dataclass(frozen=True, kw_only=True)
class InferenceVariant(MeasuredForm):
    """One way to sample; what is left out is as in the model's folder."""

    adapter: str | None = None


def variant_of(name: str, choices: Mapping[str, Any]) -> InferenceVariant:
    """A variant from what a user gave; raises for what it does not have."""
    of = f" of the variant {name}"
    found = {key.strip(): value for key, value in choices.items()}
    for key in found:
        if key not in VARIANT_KEYS:
            raise UnknownName(f"setting{of}", key, VARIANT_KEYS)
    variant = InferenceVariant(**{VARIANT_KEYS[key]: value for key, value in found.items()})
    check_form(variant, of=of, has_adapter_file=variant.adapter is not None)
    return variant


@dataclass(frozen=True, kw_only=True)
class MeasuredVariant:
    """The measurements of one variant."""

    name: str
    variant: InferenceVariant
    denoising: tuple[dict[str, Any], ...]
    """Raw answers of the repeats."""
    imaging: tuple[dict[str, Any], ...]
    images: Path | None
    problem: str | None = None
    """Why it was not measured."""

    @property
    def step_times_s(self) -> list[list[float]]:
        """Of each repeat, warm-up included."""
        return [[float(time_s) for time_s in one["times_s"]] for one in self.denoising]

    def break_even(self, first: "MeasuredVariant") -> BreakEven | None:
        """After how many denoising steps a compiled variant has paid for its start."""
        if self.variant.compile == "off" or not self.denoising or not first.denoising:
            return None
        return break_even(first.step_times_s, self.step_times_s)


def measure_variants(
    model: str,
    variants: Mapping[str, InferenceVariant],
    choices: VariantChoices,
    folder: Path,
    observer: Observer,
    contents: Mapping[str, Any] | None = None,
) -> tuple[MeasuredVariant, ...]:
    """Measures what is missing, each repeat of all variants in turns, every second round backwards.

    `contents`: of the model and the adapter of each variant. What was measured with other contents is not reused.
    Raises where a variant is refused, or where the first one, with which all are compared, cannot be measured.
    """
    first = next(iter(variants))
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in variants}
    images: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for number in range(choices.repeat):
        names = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for place, name in enumerate(names):
            if name in problems:
                continue
            observer.preparing(f"{name}, repeat {number + 1} of {choices.repeat}", place, len(names))
            request, content = _request(model, variants[name], choices), (contents or {}).get(name)
            try:
                found[name][number] = _kept(folder / name / f"denoising-{number}.json", request, content, observer)
                if number == 0 and choices.images:
                    file = folder / name / IMAGES_FILE
                    whole = replace(
                        request,
                        num_steps=choices.inference_steps,
                        num_images=choices.images,
                        images_file=str(file.absolute()),
                        batch_size=1,
                    )
                    images[name] = _kept(folder / name / "imaging.json", whole, content, observer)
            except MeasurementFailed as failure:
                if failure.status == "refused" or not found[first]:
                    raise MeasurementFailed(failure.status, f"{name}: {failure.reason}") from failure
                problems[name] = str(failure)
                observer.warning(f"{name}: {failure}. The comparison goes on without it.")
    return tuple(
        MeasuredVariant(
            name=name,
            variant=variant,
            denoising=tuple(found[name][number] for number in sorted(found[name])),
            imaging=(images[name],) if name in images else (),
            images=folder / name / IMAGES_FILE if name in images else None,
            problem=problems.get(name),
        )
        for name, variant in variants.items()
    )


def _request(model: str, variant: InferenceVariant, choices: VariantChoices) -> InferenceRequest:
    return InferenceRequest(
        model=model,
        adapter=variant.adapter,
        **form_of(variant),
        size_px=choices.size,
        num_frames=choices.frames,
        num_steps=choices.steps,
        memory_limit_bytes=memory_limit_bytes(),
    )


def _kept(path: Path, request: InferenceRequest, content: Any, observer: Observer) -> dict[str, Any]:
    """What was measured before for the same request and content, or what is measured now."""
    asked = {key: value for key, value in request.to_mapping().items() if key not in _NOT_ASKED}
    asked["content"] = content
    if path.is_file() and (request.images_file is None or Path(request.images_file).is_file()):
        stored = read_json(path, MOST_JSON_BYTES, within=path.parent)
        if stored["request"] != asked:
            is_same_request = {**stored["request"], "content": content} == asked
            how = "before the model or its adapter changed" if is_same_request else "with other settings"
            raise UserError(
                f"{path.parent} was measured {how}. Give this comparison another name, or take {path.parent.parent} "
                "away."
            )
        answer: dict[str, Any] = stored["answer"]
        return answer
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = ask_fresh_process(request, observer)
    write_text(path, json.dumps({"request": asked, "answer": answer}, indent=2) + "\n")
    return answer
