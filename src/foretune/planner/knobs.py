"""Settings that change the memory of a run, each with its cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from foretune.choices.experiment import Experiment
from foretune.choices.method import Adapter, Lora
from foretune.choices.picture_size import legal_num_frames, sides_px
from foretune.core.values.plan import RemedyKind
from foretune.planner.planning import Footprint

EXPANDABLE = "PYTORCH_ALLOC_CONF"
FRAMES = "data.num_frames"
EXPANDABLE_VALUE = "expandable_segments:True"
_SHARES = (0.25, 0.5, 0.75, 1.0)
_SMALLER_SIDES = (0.75, 0.5)
_SIDE_MULTIPLE_PX = 64
_MOST_DOUBLINGS = 3
_SMALLEST_RANK = 4
_SHORTER_VIDEOS = (0.75, 0.6, 0.5, 0.4, 0.3, 0.2)
_OTHER_RESULT = frozenset({"quantize.denoiser", "quantize.text_encoders", "levers.vae_tiling"})
"""Settings that always change the result, whatever they are combined with."""
QUANTISED_BASES = ("int8", "nf4")
"""Quantised bases from the finest to the coarsest. float8 has the size of int8."""


@dataclass(frozen=True)
class SettingChange:
    """Settings to try."""

    kind: RemedyKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    num_frames: int | None = None
    expandable: bool = False
    is_other_result: bool = False
    """Whether the resulting model differs; some settings imply it."""

    @property
    def changes_the_result(self) -> bool:
        return self.is_other_result or not _OTHER_RESULT.isdisjoint(self.settings)

    def on_top_of(self, below: Mapping[str, Any]) -> "SettingChange":
        """Returns this change with other settings added after its own; its own take precedence."""
        return replace(self, settings={**self.settings, **below, **self.settings})

    def without_idle(self, experiment: Experiment) -> "SettingChange":
        """Returns only the settings that the experiment does not already have."""
        now = experiment.to_mapping()
        after = self.applied(experiment).to_mapping()
        deciding = {}
        for key, value in self.settings.items():
            section, name = key.split(".")
            if now[section].get(name) != after[section].get(name):
                deciding[key] = value
        return replace(self, settings=deciding)

    def applied(self, experiment: Experiment) -> Experiment:
        data = experiment.to_mapping()
        for key, value in self.settings.items():
            section, name = key.split(".")
            if name == "kind" and section == "method":
                data[section] = {"kind": value}
            else:
                data[section][name] = value
        return Experiment.from_mapping(data)

    def words(self) -> dict[str, str]:
        """Returns the settings as a user types them."""
        typed = {key: _text(value) for key, value in self.settings.items()}
        if self.num_frames is not None:
            typed[FRAMES] = str(self.num_frames)
        return {**typed, **({EXPANDABLE: EXPANDABLE_VALUE} if self.expandable else {})}


def recompute(found: Footprint, *, has_expandable: bool = True) -> list[SettingChange]:
    """Returns changes without host traffic and with the same result: caches, batches, checkpointing, segments.

    `has_expandable`: whether the allocator can have expandable segments there.
    """
    experiment = found.experiment
    caches = {
        f"levers.{name}": True for name in ("cache_latents", "cache_text") if not getattr(experiment.levers, name)
    }
    splits = [dict[str, Any]()]
    batch, accumulation = experiment.train.batch_size, experiment.train.gradient_accumulation
    while batch % 2 == 0:
        batch, accumulation = batch // 2, accumulation * 2
        splits.append({"train.batch_size": batch, "train.gradient_accumulation": accumulation})
    share = experiment.levers.gradient_checkpointing
    shares = [dict[str, Any](), *({"levers.gradient_checkpointing": s} for s in _SHARES if s > share)]
    return [
        SettingChange("recompute", {**caches, **split, **more}, expandable=expandable)
        for split, more, expandable in product(splits, shares, (False, True)[: 1 + has_expandable])
        if caches or split or more or expandable
    ]


def sharding(experiment: Experiment) -> list[SettingChange]:
    """Returns the change to sharded weights, if there are several devices that hold whole ones."""
    parallel = experiment.parallel
    if parallel.devices == 1 or parallel.sharding != "none":
        return []
    return [SettingChange("recompute", {"parallel.sharding": "full"})]


def quantised_bases(experiment: Experiment) -> list[SettingChange]:
    """Returns coarser quantisations of the frozen weights than now, the finest first."""
    if not isinstance(experiment.method, Adapter):
        return []
    now = experiment.quantize.denoiser
    if now not in ("none", *QUANTISED_BASES, "float8", "int8-bnb"):
        return []
    coarser = QUANTISED_BASES if now == "none" else tuple(b for b in QUANTISED_BASES if b == "nf4" and now != "nf4")
    return [SettingChange("quantised base", {"quantize.denoiser": base}) for base in coarser]


def block_swap(num_blocks: int) -> SettingChange:
    return SettingChange("host memory", {"levers.gradient_checkpointing": 1.0, "levers.block_swap": num_blocks})


def host_memory(found: Footprint) -> Iterator[SettingChange]:
    """Yields changes with the same result and tensors on the host, least traffic first. Excludes block swap."""
    experiment, levers = found.experiment, found.experiment.levers
    base: dict[str, Any] = {}
    if experiment.train.ema is not None and not levers.ema_offload:
        base["levers.ema_offload"] = True
        yield SettingChange("host memory", base)
    if not levers.activation_offload:
        yield SettingChange("host memory", {**base, "levers.activation_offload": True})
    if experiment.method.kind == "full" and not levers.optimizer_offload:
        yield SettingChange("host memory", {**base, "levers.optimizer_offload": True})
        yield SettingChange("host memory", {**base, "levers.optimizer_offload": True, "train.weight_dtype": "bf16"})


def lighter_optimizers(experiment: Experiment) -> Iterator[SettingChange]:
    """Yields full fine-tuning with fewer bytes per weight, the smallest change first."""
    if experiment.method.kind != "full":
        return
    in_bf16 = {"train.weight_dtype": "bf16", "optimizer.compensation": "none"}
    fused: dict[str, Any] = {
        "levers.fused_backward": True,
        "train.max_grad_norm": None,
        "train.gradient_accumulation": 1,
    }
    kinds: list[dict[str, Any]] = []
    if experiment.train.ema is not None:
        kinds.append({"train.ema": None})
    if experiment.optimizer.kind == "adamw" and experiment.train.weight_dtype == "fp32":
        kinds += [{"optimizer.kind": "adamw8bit"}, {"optimizer.kind": "adafactor"}]
    if experiment.train.precision == "bf16":
        kinds += [
            {"train.weight_dtype": "bf16", "optimizer.kind": "adamw", "optimizer.compensation": "stochastic"},
            {**in_bf16, "optimizer.kind": "adamw8bit"},
            {**in_bf16, "optimizer.kind": "adafactor"},
            {**in_bf16, "optimizer.kind": "adafactor", **fused},
        ]
    for settings in kinds:
        yield SettingChange("lighter optimizer", settings, is_other_result=True)


def smaller_images(found: Footprint) -> Iterator[SettingChange]:
    """Yields lower resolutions, the largest first."""
    side_px = min(found.size.height_px, found.size.width_px)
    for share in _SMALLER_SIDES:
        smaller_px = int(side_px * share) // _SIDE_MULTIPLE_PX * _SIDE_MULTIPLE_PX
        if smaller_px:
            resolution = _at_shorter_side(found, smaller_px)
            yield SettingChange("smaller input", {"data.resolution": resolution}, is_other_result=True)


def _at_shorter_side(found: Footprint, shorter_px: int) -> int | str:
    """Returns the resolution with the same aspect ratio; one number where that means the same."""
    size = found.size.with_shorter_side(shorter_px, found.subject.geometry.size_multiple_px)
    geometry = found.subject.geometry
    usual_px = (geometry.default_height_px, geometry.default_width_px)
    is_video = geometry.default_num_frames > 1
    plain = sides_px(shorter_px, usual_px, geometry.size_multiple_px, is_video=is_video)
    return shorter_px if plain == (size.height_px, size.width_px) else f"{size.width_px}x{size.height_px}"


def fewer_frames(found: Footprint) -> Iterator[SettingChange]:
    """Yields shorter videos of valid lengths, the longest first."""
    now = found.size.num_frames
    lengths = (
        legal_num_frames(round(now * share), found.subject.geometry.temporal_factor) for share in _SHORTER_VIDEOS
    )
    for num_frames in dict.fromkeys(lengths):
        if 1 < num_frames < now:
            yield SettingChange("smaller input", num_frames=num_frames, is_other_result=True)


def lora_instead(experiment: Experiment) -> SettingChange | None:
    if experiment.method.kind != "full":
        return None
    lora = {"method.kind": "lora", "train.weight_dtype": "fp32", "optimizer.compensation": "none"}
    return SettingChange("adapter", lora, is_other_result=True)


def smaller_ranks(experiment: Experiment) -> Iterator[SettingChange]:
    """Yields half the rank, a quarter, ... down to the smallest useful rank."""
    if isinstance(experiment.method, Lora):
        rank = experiment.method.rank // 2
        while rank >= _SMALLEST_RANK:
            yield SettingChange("other", {"method.rank": rank}, is_other_result=True)
            rank //= 2


def larger_batches(experiment: Experiment) -> Iterator[SettingChange]:
    """Yields larger batches for the same optimizer step with less accumulation; without accumulation, larger steps."""
    batch, accumulation = experiment.train.batch_size, experiment.train.gradient_accumulation
    if accumulation == 1:
        most = getattr(experiment.data, "num_samples", None)  # of data in files, nobody has counted them yet
        for doublings in range(1, _MOST_DOUBLINGS + 1):
            if most is None or batch << doublings <= most:
                yield SettingChange("larger batch", {"train.batch_size": batch << doublings}, is_other_result=True)
        return
    for divisor in range(2, accumulation + 1):
        if accumulation % divisor == 0:
            settings = {"train.batch_size": batch * divisor, "train.gradient_accumulation": accumulation // divisor}
            yield SettingChange("larger batch", settings)


def less_checkpointing(experiment: Experiment) -> Iterator[SettingChange]:
    """Yields smaller shares of checkpointed blocks, none first."""
    levers = experiment.levers
    if levers.checkpoint_stride is not None or levers.block_swap:
        return
    for share in (0.0, *_SHARES):
        if share < levers.gradient_checkpointing:
            yield SettingChange("less checkpointing", {"levers.gradient_checkpointing": share})


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
