"""Which tiny pipelines can be written; of each family the first variant is the default."""

from foretune.catalog import FAMILY_FACTS
from foretune.core.errors import UnknownName

TINY_VARIANTS: dict[str, tuple[str, ...]] = {
    name: facts.tiny_variants for name, facts in FAMILY_FACTS.items() if facts.tiny_variants
}


def tiny_variant(family: str, variant: str | None) -> str:
    """The variant that was asked for, or the family's default; raises for names that are not known."""
    if family not in TINY_VARIANTS:
        raise UnknownName("tiny pipeline family", family, TINY_VARIANTS)
    variants = TINY_VARIANTS[family]
    if variant is not None and variant not in variants:
        raise UnknownName(f"variant of the tiny {family} pipeline", variant, variants)
    return variant or variants[0]
