"""The trainers whose configurations are read, and how each of them runs a step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretune.choices.step_form import TrainerHabits
from foretune.config.from_trainers.dialects import DIFFUSERS, SIMPLETUNER, Dialect

_CLIP_TOKENS = {"sd1": 77, "sdxl": 77}

AI_TOOLKIT = Dialect(
    name="ai-toolkit",
    adapter_weights={},
    full_weights="bf16",
    num_text_tokens={**_CLIP_TOKENS, "flux": 512, "wan": 512, "hidream": 128, "chroma": 512, "lumina2": 256},
    sources=(
        "github:ostris/ai-toolkit at 27a03a91, toolkit/config_modules.py: keys and defaults",
        (
            "jobs/process/BaseSDTrainProcess.py: adapters are moved in fp32; the text encoders stay unless they are "
            "unloaded or their results cached"
        ),
    ),
    unverified=("caption lengths, as far as they are here",),
)
KOHYA = Dialect(
    name="sd-scripts",
    adapter_weights={},
    full_weights="fp32",
    num_text_tokens={**_CLIP_TOKENS, "flux": 512, "sd3": 256, "lumina2": 256, "chroma": 512},
    sources=(
        (
            "github:kohya-ss/sd-scripts at 48d368fa, library/train_util.py: options and defaults; trained weights are "
            "fp32 unless full_bf16 or full_fp16 is set"
        ),
        "flux_train_utils.py, sd3_train_utils.py, lumina_train_util.py: lengths of captions",
    ),
    unverified=(
        "that the encoders of latents and captions stay in the dtype of the training where they are not cached",
    ),
)
ONETRAINER = Dialect(
    name="onetrainer",
    adapter_weights={},
    full_weights="fp32",
    num_text_tokens={**_CLIP_TOKENS, "flux": 77, "sd3": 77, "chroma": 512, "qwen_image": 512, "z_image": 512},
    sources=("github:Nerogar/OneTrainer at 23df3832, modules/util/config/TrainConfig.py: keys, defaults and dtypes",),
    unverified=("caption lengths: the defaults of text_encoder_sequence_length and text_encoder_2_sequence_length",),
)
_IN_EVERY_PROGRAM = (
    "temporary tensors of its own optimizer and of its own attention kernels",
    "what its samples during training take",
)


@dataclass(frozen=True, kw_only=True)
class OtherTrainer:
    """One trainer."""

    key: str
    title: str
    file: str
    """What its configuration is, in words."""
    dialect: Dialect
    is_backtested: bool = False
    """Whether its published figures were compared with forecasts; otherwise its code was read and nothing measured."""
    not_imitated: tuple[str, ...] = ()
    """What a plan does not imitate."""

    @property
    def habits(self) -> TrainerHabits:
        return replace(self.dialect.habits, keeps_gradients=self.dialect.keeps_gradients)

    def unlike(self) -> tuple[str, ...]:
        """All that a plan does not imitate."""
        return (*self.not_imitated, *_IN_EVERY_PROGRAM)


PROGRAMS: Mapping[str, OtherTrainer] = {
    program.key: program
    for program in (
        OtherTrainer(
            key="simpletuner",
            title="SimpleTuner",
            file="config.json, with a multidatabackend.json beside it",
            dialect=SIMPLETUNER,
            is_backtested=True,
            not_imitated=("clipping by value, which is planned as clipping by norm",),
        ),
        OtherTrainer(
            key="ai-toolkit",
            title="ai-toolkit",
            file="a YAML file with `job` and `config.process`",
            dialect=AI_TOOLKIT,
            not_imitated=("moving parts between the host and the device with low_vram",),
        ),
        OtherTrainer(
            key="sd-scripts",
            title="kohya's sd-scripts",
            file="a TOML file of its options, or a command line",
            dialect=KOHYA,
            not_imitated=("adapters of text encoders",),
        ),
        OtherTrainer(
            key="onetrainer",
            title="OneTrainer",
            file="a JSON file that it saved, or a preset",
            dialect=ONETRAINER,
            not_imitated=("its own int8 and fp8 matrix products",),
        ),
        OtherTrainer(
            key="diffusers",
            title="diffusers' example scripts",
            file="a command line that starts one: accelerate launch train_*.py ...",
            dialect=DIFFUSERS,
            is_backtested=True,
            not_imitated=("the autoencoder's dtype where latents are not cached",),
        ),
    )
}
