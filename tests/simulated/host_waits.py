"""Where the host waits for the device inside a step: the list of docs/profiling.md, which tests compare with runs.

A wait of the host lets the device run dry: nothing is queued until the wait ends. A step has none of its own. Some
choices bring waits, most of them in libraries; they are here with their number, and every other one is a defect.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretune.choices.experiment import Experiment

_BITSANDBYTES = ("adamw8bit", "paged-adamw8bit", "lion", "lion8bit")
_ANY_NUMBER = range(1, 2**31)


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What decides how often the host waits in a step."""

    experiment: Experiment
    family: str
    num_weights: int
    """Trained tensors."""
    num_matrices: int
    """Those of them with two dimensions or more."""
    num_ema_groups: int
    """Groups in which an EMA on the host copies the weights."""
    num_attentions: int
    """Blocks of a forward pass, and those that its backward pass recomputes with their attention."""
    is_first: bool = False
    """Whether models and optimizers set up what they need in this step."""
    is_first_update: bool = False
    updates: bool = True
    """False for a step that fp16 loss scaling skips."""

    @property
    def num_batches(self) -> int:
        return self.experiment.train.gradient_accumulation

    @property
    def num_samples(self) -> int:
        return self.experiment.train.batch_size * self.num_batches


@dataclass(frozen=True, kw_only=True)
class HostWait:
    """One entry of the list."""

    choice: str
    """What brings the wait, as a reader would name it."""
    how_often: str
    reason: str
    owner: str
    """Whose code waits."""
    places: tuple[tuple[str, str], ...]
    """(end of a file's name, function): what is in the stack of each of these waits and of no other."""
    num: Callable[[StepFacts], int | range]
    """How often in a step; a range where it depends on the data."""

    def is_at(self, stack: str) -> bool:
        """Whether this wait has such a stack: lines of `file:line function`, the innermost first."""
        frames = (line.rsplit(None, 1) for line in stack.splitlines() if line.strip())
        return any(
            place.strip().rpartition(":")[0].endswith(file) and function == name
            for place, function in frames
            for file, name in self.places
        )


def _of_bitsandbytes(step: StepFacts) -> int:
    kind, levers = step.experiment.optimizer.kind, step.experiment.levers
    if kind not in _BITSANDBYTES or levers.optimizer_offload or not step.updates:
        return 0
    num_optimizers = step.num_weights if levers.fused_backward else 1
    return step.num_weights + (num_optimizers if kind.startswith("paged") else 0)


def _of_prodigy(step: StepFacts) -> int:
    if step.experiment.optimizer.kind != "prodigy" or step.experiment.levers.optimizer_offload or not step.updates:
        return 0
    return 3 + step.is_first_update


def _of_offloaded_optimizer(step: StepFacts) -> int:
    if not step.experiment.levers.optimizer_offload or not step.updates:
        return 0
    return step.num_weights if step.experiment.levers.fused_backward else 1


def _of_adafactor(step: StepFacts) -> int:
    on_device = step.experiment.optimizer.kind == "adafactor" and not step.experiment.levers.optimizer_offload
    return 2 * step.num_matrices if on_device and step.is_first_update else 0


def _of_text_encoders(step: StepFacts) -> int | range:
    reads_text = not step.experiment.levers.cache_text and step.family != "ddpm"
    return _ANY_NUMBER if reads_text else 0


def _in_batches_of(*families: str, each: int = 1) -> Callable[[StepFacts], int]:
    return lambda step: each * step.num_batches if step.family in families else 0


def _once_in(family: str, num: int) -> Callable[[StepFacts], int]:
    return lambda step: num if step.family == family and step.is_first else 0


HOST_WAITS = (
    HostWait(
        choice="`train.precision=fp16`",
        how_often="1",
        reason="loss scaling reads whether a gradient is infinite before it updates",
        owner="torch",
        places=(("torch/amp/grad_scaler.py", "<genexpr>"),),
        num=lambda step: int(step.experiment.train.precision == "fp16"),
    ),
    HostWait(
        choice="`adamw8bit`, `paged-adamw8bit`, `lion`, `lion8bit`",
        how_often="1 for each trained tensor; paged: 1 more",
        reason="the optimizer synchronises after it updates a tensor",
        owner="bitsandbytes",
        places=(("bitsandbytes/utils.py", "sync_gpu"),),
        num=_of_bitsandbytes,
    ),
    HostWait(
        choice="`prodigy`",
        how_often="3; in the first step 4",
        reason="the host computes the learning rate from a number of the device",
        owner="pytorch-optimizer",
        places=(("pytorch_optimizer/optimizer/prodigy.py", "step"),),
        num=_of_prodigy,
    ),
    HostWait(
        choice="`adafactor`",
        how_often="in the first step 2 for each trained matrix",
        reason="states are created on the host",
        owner="transformers",
        places=(("transformers/optimization.py", "step"),),
        num=_of_adafactor,
    ),
    HostWait(
        choice="`levers.optimizer_offload`",
        how_often="1; with `fused_backward` 1 for each trained tensor",
        reason="the host updates the weights, for which it needs the gradients",
        owner="Foretune",
        places=(("foretune/step/optimizers/on_host.py", "step"),),
        num=_of_offloaded_optimizer,
    ),
    HostWait(
        choice="`levers.ema_offload`",
        how_often="1 for each group of trained tensors",
        reason="the host averages the weights, for which it needs them",
        owner="Foretune",
        places=(("foretune/step/ema.py", "update"),),
        num=lambda step: step.num_ema_groups if step.experiment.levers.ema_offload else 0,
    ),
    HostWait(
        choice="`levers.cache_text=false`",
        how_often="several for each batch or caption, depending on family and padding",
        reason="captions are tokenised on the host; text encoders look at their masks",
        owner="diffusers, transformers",
        places=(("", "encode_text"),),
        num=_of_text_encoders,
    ),
    HostWait(
        choice="Chroma",
        how_often="1 for each batch",
        reason="the embedding of no guidance is computed on the host",
        owner="diffusers",
        places=(("diffusers/models/transformers/transformer_chroma.py", "forward"),),
        num=_in_batches_of("chroma"),
    ),
    HostWait(
        choice="Lumina-Image 2.0",
        how_often="4 for each batch",
        reason="lengths of captions are read from their mask, and tables of positions are copied again",
        owner="diffusers",
        places=(("diffusers/models/transformers/transformer_lumina2.py", "forward"),),
        num=_in_batches_of("lumina2", each=4),
    ),
    HostWait(
        choice="Mochi 1",
        how_often="1 for each sample and block, and again where attention is recomputed",
        reason="attention looks for the tokens that a caption has",
        owner="diffusers",
        places=(("diffusers/models/attention_processor.py", "__call__"),),
        num=lambda step: step.num_attentions * step.num_samples if step.family == "mochi" else 0,
    ),
    HostWait(
        choice="Qwen-Image",
        how_often="1 for each batch",
        reason="the number of tokens is copied to the device to compare it with the mask",
        owner="diffusers",
        places=(("diffusers/models/transformers/transformer_qwenimage.py", "compute_text_seq_len_from_mask"),),
        num=_in_batches_of("qwen_image"),
    ),
    HostWait(
        choice="Qwen-Image, first step",
        how_often="2",
        reason="tables of positions are copied to the device",
        owner="diffusers",
        places=(("diffusers/models/transformers/transformer_qwenimage.py", "_get_device_freqs"),),
        num=_once_in("qwen_image", 2),
    ),
    HostWait(
        choice="Z-Image, first step",
        how_often="3",
        reason="tables of positions are copied to the device",
        owner="diffusers",
        places=(("diffusers/models/transformers/transformer_z_image.py", "__call__"),),
        num=_once_in("z_image", 3),
    ),
)


def predicted(step: StepFacts) -> dict[str, int | range]:
    """How often each choice of a step makes the host wait; without those that never do."""
    nums = {wait.choice: wait.num(step) for wait in HOST_WAITS}
    return {choice: num for choice, num in nums.items() if num}


def counted(waits: Iterable[tuple[str, str]]) -> tuple[Counter[str], list[str]]:
    """How often each choice made the host wait, and the stacks of waits that are not on the list."""
    nums, others = Counter[str](), list[str]()
    for what, stack in waits:
        choice = next((wait.choice for wait in HOST_WAITS if wait.is_at(stack)), None)
        if choice is None:
            others.append(f"{what}\n{stack}")
        else:
            nums[choice] += 1
    return nums, others


def differences(step: StepFacts, waits: Sequence[tuple[str, str]]) -> list[str]:
    """What a step's waits have more or less than the list says; empty where they are exactly those of the list."""
    nums, others = counted(waits)
    listed = predicted(step)
    found = [f"a wait that is not on the list: {other}" for other in others]
    for choice in sorted({*nums, *listed}):
        num, expected = nums[choice], listed.get(choice, 0)
        if not (num in expected if isinstance(expected, range) else num == expected):
            found.append(f"{choice}: the host waited {num} times, by the list {expected}")
    return found
