"""An adapter as it was asked for, in peft's words."""

from collections.abc import Sequence
from typing import Any

from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftConfig

from foretune.choices.method import AnyAdapter, Dora, Loha, Lokr, Lora, Oft, RsLora

# peft keeps LoKr's larger matrix whole from a rank of half its side on. This one is above every matrix there is, and a
# power of two, so that alpha scaled with it is the same strength to the last bit.
WHOLE_RANK = 2**20


def peft_config(choice: AnyAdapter, targets: Sequence[str]) -> PeftConfig:
    """The settings with which peft builds this adapter, and with which anybody loads it again."""
    names = list(targets)
    match choice:
        case Oft():
            return OFTConfig(r=0, oft_block_size=choice.block_size, target_modules=names)
        case Loha():
            return LoHaConfig(r=choice.rank, alpha=_whole(choice.effective_alpha), target_modules=names)
        case Lokr():
            rank = WHOLE_RANK if choice.full_matrix else choice.rank
            alpha = _whole(choice.effective_alpha * rank / choice.rank)
            return LoKrConfig(r=rank, alpha=alpha, decompose_factor=choice.factor, target_modules=names)
        case Lora() | Dora() | RsLora():
            return LoraConfig(
                r=choice.rank,
                lora_alpha=_whole(choice.effective_alpha),
                lora_dropout=choice.dropout,
                use_dora=isinstance(choice, Dora),
                use_rslora=isinstance(choice, RsLora),
                target_modules=names,
                init_lora_weights=True,
            )


def _whole(alpha: float) -> Any:
    """peft writes alpha as given; a whole number stays one, which older readers insist on."""
    return int(alpha) if alpha == int(alpha) else alpha
