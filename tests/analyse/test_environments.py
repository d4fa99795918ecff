"""Fingerprints are compared field by field."""

from foretune.analyse.environments import differences, environment_differences, named, source_differences


def test_fields_that_differ_are_named_with_both_values() -> None:
    a = {"cpu": "x", "packages": {"torch": "2.9", "peft": None}, "torch": {"devices": [{"name": "l4"}]}}
    b = {"cpu": "x", "packages": {"torch": "2.8", "peft": None}, "torch": {"devices": []}}
    assert [str(found) for found in differences(a, b)] == [
        "packages.torch: 2.9 against 2.8",
        "torch.devices: absent against []",
        "torch.devices[0].name: l4 against absent",
    ]
    assert differences(a, a) == ()


def test_source_and_what_is_volatile_make_no_environment() -> None:
    a = {"cpu": "x", "source": {"commit": "1"}, "volatile": {"load": 0.1}}
    b = {"cpu": "x", "source": {"commit": "2"}, "volatile": {"load": 0.2}}
    assert environment_differences(a, b) == ()
    assert [found.field for found in source_differences(a, b)] == ["source.commit"]


def test_a_long_list_is_shortened() -> None:
    found = differences({str(i): 0 for i in range(6)}, {str(i): 1 for i in range(6)})
    assert named(found, most=2) == "0: 0 against 1; 1: 0 against 1; and 4 more"
