"""Builds the peft configuration of a requested adapter."""

from collections.abc import Sequence
from typing import Any

from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig, PeftConfig

from foretune.choices.method import AnyAdapter, Dora, Loha, Lokr, Lora, Oft, RsLora

# peft does not factorise LoKr's larger matrix if the rank is at least half its side. This rank is above every side, and
# a power of two, so that alpha scaled with it gives bit-identical strength.
WHOLE_RANK = 2**20


def peft_config(choice: AnyAdapter, targets: Sequence[str]) -> PeftConfig:
    """Returns the settings with which peft builds this adapter and loads it again."""
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
    """Converts an integral alpha to int: peft writes it as given, and older readers require an int."""
    return int(alpha) if alpha == int(alpha) else alpha
