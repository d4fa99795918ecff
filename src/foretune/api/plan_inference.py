"""`plan_inference`: memory, time and price of images or clips, without weights and without a GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from foretune.api.live_steps import live_steps
from foretune.api.plan import COMMON, devices_and_host
from foretune.api.terms import TermsTyped
from foretune.core.errors import UnknownName, UserError
from foretune.core.observer import Observer
from foretune.core.values.inference_plan import InferencePlan, Offload

if TYPE_CHECKING:
    from foretune.choices.quantize import DenoiserNumbers
    from foretune.choices.training import CompileMode, Precision

_MOST_WITH_REMEDIES = 8


@dataclass(frozen=True)
class InferencePlans(Sequence[InferencePlan]):
    """Plans of one model's inference, in the order of the devices."""

    plans: tuple[InferencePlan, ...]

    @overload
    def __getitem__(self, index: int) -> InferencePlan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InferencePlan]: ...
    def __getitem__(self, index: int | slice) -> InferencePlan | Sequence[InferencePlan]:
        return self.plans[index]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[InferencePlan]:
        return iter(self.plans)

    def __str__(self) -> str:
        """What `foretune plan --inference` prints."""
        from foretune.reports.terminal.inference_plans import print_inference_plans
        from foretune.reports.terminal.tables import as_text

        return as_text(lambda out: print_inference_plans(out, self.plans, explain=False))

    def to_mappings(self) -> list[dict[str, Any]]:
        """Plain data, one mapping for each plan."""
        return [plan.to_mapping() for plan in self.plans]


def plan_inference(
    model: str | Path,
    *,
    on: str | Iterable[str] = COMMON,
    batch: int = 1,
    precision: "Precision" = "bf16",
    quantize: "DenoiserNumbers" = "none",
    compile: "CompileMode" = "off",  # noqa: A002 - the name of the lever
    offload: Offload = "none",
    vae_tiling: bool = False,
    adapter_rank: int | None = None,
    size: int | str | None = None,
    frames: int | None = None,
    inference_steps: int = 28,
    only_denoising: bool = False,
    prices: Mapping[str, float] | Sequence[str] | None = None,
    ram: str | None = None,
    observer: Observer | None = None,
) -> InferencePlans:
    """What inference takes, before anything is downloaded: memory by phase, time and price of images or clips.

    Args:
        model: a model (`"flux.1-dev"`), its Hub id or its folder.
        on: devices, as for `plan`.
        batch: images or clips that are made at once.
        precision: fp32, tf32, bf16 or fp16, of all parts of the pipeline.
        quantize: numbers of the denoiser's weights: int8, float8, float8-dynamic, nf4 or int8-bnb.
        compile: `regional` compiles the repeated blocks; the time is then not known.
        offload: `"encoders"` frees the text encoders before the denoiser is loaded, `"model"` has each part on the
            device only while it computes; `"none"` keeps all parts there.
        vae_tiling: decode in tiles.
        adapter_rank: rank of a LoRA that is computed beside the weights. A merged one changes nothing: leave it out.
        size: side in pixels, or a width and a height such as "416x240"; the model's own if left out.
        frames: of clips; the model's own if left out.
        inference_steps: denoising steps.
        only_denoising: the denoiser alone and without guidance, as `bench_inference` measures denoising steps.
        prices: US dollars for an hour of a device, `{"h100-sxm": 2.49}`; others have the catalogue's.
        ram: also judge the host's memory: `"32GiB"`, or `"here"`.
        observer: receives progress.
    """
    from foretune.planner.inference.planning import InferencePlanner
    from foretune.planner.inference.question import InferenceQuestion

    observer = observer or Observer()
    _check(precision, quantize, compile, offload)
    _check_counts(batch=batch, inference_steps=inference_steps, adapter_rank=adapter_rank, frames=frames)
    devices, host, terms = devices_and_host(str(model), (), on, ram, TermsTyped(prices=prices), observer, is_live=False)
    question = InferenceQuestion(
        model=str(model),
        batch_size=batch,
        precision=precision,
        quantize=quantize,
        compile=compile,
        offload=offload,
        vae_tiling=vae_tiling,
        adapter_rank=adapter_rank,
        size_px=size,
        num_frames=frames,
        num_inference_steps=inference_steps,
        only_denoising=only_denoising,
    )
    source = live_steps(observer, lambda what: observer.preparing(what, 0, 0), needed=False)
    planner = InferencePlanner(question, source)
    advises = len(devices) <= _MOST_WITH_REMEDIES
    plans = tuple(planner.plan_on(device, terms=terms, host=host, advises=advises) for device in devices)
    if planner.note is not None:
        observer.message(f"Note: {planner.note}")
    return InferencePlans(plans)


def _check(precision: str, quantize: str, compile_mode: str, offload: str) -> None:
    """Raises for a name that does not exist, with the nearest one."""
    from typing import get_args

    from foretune.choices.training import CompileMode, Precision
    from foretune.planner.inference.question import NUMBERS

    for what, given, known in (
        ("precision", precision, get_args(Precision)),
        ("quantization", quantize, NUMBERS),
        ("compile mode", compile_mode, get_args(CompileMode)),
        ("offload", offload, get_args(Offload)),
    ):
        if given not in known:
            raise UnknownName(what, given, known)


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{name}={count}: inference needs at least 1.")
