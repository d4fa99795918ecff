"""Which tiny pipelines can be written; of each family the first variant is the default."""

from foretune.core.errors import UnknownName

TINY_VARIANTS: dict[str, tuple[str, ...]] = {"ddpm": ("cifar10",), "sd3": ("3.5", "3"), "flux": ("dev", "schnell")}


def tiny_variant(family: str, variant: str | None) -> str:
    """The variant that was asked for, or the family's default; raises for names that are not known."""
    if family not in TINY_VARIANTS:
        raise UnknownName("tiny pipeline family", family, TINY_VARIANTS)
    variants = TINY_VARIANTS[family]
    if variant is not None and variant not in variants:
        raise UnknownName(f"variant of the tiny {family} pipeline", variant, variants)
    return variant or variants[0]
