"""Samples that a mask selects."""

import numpy as np
import pytest

from foretune.data.selected import SelectedSamples


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_selected_samples_are_those_of_the_mask(share: float) -> None:
    mask = np.random.default_rng(0).random(20_000) < share
    expected = np.flatnonzero(mask).tolist()
    selected = SelectedSamples(mask)
    assert len(selected) == len(expected)
    assert list(selected) == expected
    assert list(selected[:7]) == expected[:7]
    for place in range(0, len(expected), 997):
        assert selected[place] == expected[place]
        assert selected[-place - 1] == expected[-place - 1]
    with pytest.raises(IndexError):
        selected[len(expected)]


def test_nothing_of_nothing() -> None:
    assert list(SelectedSamples(np.zeros(0, np.bool_))) == []
