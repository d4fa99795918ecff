import pytest

from tests.architecture.family_names import named_families, needless_permissions
from tests.architecture.source_tree import REPOSITORY, SOURCE, Plant


def test_families_are_named_in_models_and_their_table() -> None:
    assert named_families(SOURCE, REPOSITORY) == []
    assert named_families(REPOSITORY / "tools", REPOSITORY) == []


def test_each_place_that_may_name_families_does() -> None:
    assert needless_permissions(REPOSITORY) == []


@pytest.mark.parametrize(
    "text",
    [
        'if family == "ddpm": ...',
        'UNETS = frozenset({"sdxl"})',
        'def f(family):\n    match family:\n        case "qwen_image": ...',
        'print("a flux model has no such part")',
        'print(f"{what} of sd3.")',
    ],
)
def test_control_a_family_by_name(plant: Plant, text: str) -> None:
    source = plant({"planner/a.py": text, "models/b.py": text, "catalog/families.py": text})
    (violation,) = named_families(source, source.parent)
    assert violation.startswith("src/foretune/planner/a.py:")


def test_control_what_is_no_family(plant: Plant) -> None:
    allowed = '''"""A docstring about flux."""
MODEL = "flux.1-dev"
FOLDER = "ddpm-cifar10"
MODULE = "foretune.models.flux:Flux"
WORD = "influx"
'''
    source = plant({"planner/a.py": allowed})
    assert named_families(source, source.parent) == []
