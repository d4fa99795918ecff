"""The feed-forward parts of every family's blocks are found, except in blocks that have none."""

import pytest
import torch
from torch import nn

from foretune import catalog
from foretune.models.locating import family_from_catalogue

UNETS = [name for name, facts in catalog.FAMILY_FACTS.items() if facts.is_unet]
ONE_OF_EACH = {row.family: name for name, row in sorted(catalog.denoisers().items())}


def widens_beside_attention(block: nn.Module) -> bool:
    """Whether it widens tokens side by side with attention, as FLUX's single blocks do.

    By a layer of its own, or by one that makes queries, keys and values, too.
    """
    names = [name.rpartition(".")[2] for name, module in block.named_modules() if isinstance(module, nn.Linear)]
    return "proj_mlp" in names or "to_qkv_mlp_proj" in names


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_blocks_have_feed_forward_parts(name: str) -> None:
    family = family_from_catalogue(name)
    kinds = family.block_kinds()
    if not kinds:
        pytest.skip("a UNet, of which most blocks are convolutions")
    family = family.with_depths(tuple(1 for _ in kinds))
    for block in family.blocks(family.denoiser_on_meta(torch.bfloat16)):
        parts = family.feed_forwards(block)
        assert bool(parts) != widens_beside_attention(block)
        # Of all a block's weights a good part, and none of them twice.
        inside = [id(p) for part in parts for p in part.parameters()]
        assert len(inside) == len(set(inside))
        assert not parts or sum(p.numel() for part in parts for p in part.parameters()) > 0.2 * sum(
            p.numel() for p in block.parameters()
        )


@pytest.mark.parametrize("name", UNETS)
def test_unets_with_attention_to_text_have_some(name: str) -> None:
    family = family_from_catalogue(ONE_OF_EACH[name])
    blocks = family.blocks(family.denoiser_on_meta(torch.bfloat16))
    assert any(family.feed_forwards(block) for block in blocks) == family.facts.has_feed_forwards
