"""One file per model family: how to build it, the inputs of a step, the loss, and sampling.

Families that cannot be trained yet are included, because their architecture determines what a step needs.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from foretune.catalog import FAMILY_FACTS, family_facts
from foretune.models.family import Architecture, Conditioning, Family, RepeatedBlocks, TensorSpec


class FamilyClasses(Mapping[str, type[Family]]):
    """The class of each family of the facts table: the one that its module `models/<name>.py` defines.

    A module is imported when its family is asked for, because it takes time.
    """

    def __getitem__(self, name: str) -> type[Family]:
        module = import_module(f"{__name__}.{family_facts(name).name}")
        defined = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
        (found,) = (value for value in defined if isinstance(value, type) and issubclass(value, Family))
        return found

    def __contains__(self, name: object) -> bool:
        return name in FAMILY_FACTS

    def __iter__(self) -> Iterator[str]:
        return iter(FAMILY_FACTS)

    def __len__(self) -> int:
        return len(FAMILY_FACTS)


FAMILIES = FamilyClasses()

__all__ = ["FAMILIES", "Architecture", "Conditioning", "Family", "RepeatedBlocks", "TensorSpec"]
