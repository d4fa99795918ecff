import pytest
import torch

from foretune.accelerator.random_states import restored_random_states


def test_the_generator_of_the_cpu_goes_on_where_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with restored_random_states():
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.gpu
def test_those_of_all_gpus_go_on_where_they_were() -> None:
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    before = [torch.cuda.get_rng_state(device) for device in devices]
    with restored_random_states():
        for device in devices:
            torch.rand(5, device=device)
        assert not any(map(torch.equal, before, map(torch.cuda.get_rng_state, devices)))
    assert all(map(torch.equal, before, map(torch.cuda.get_rng_state, devices)))


def test_that_of_mps_too_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [torch.tensor([7])]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: state.__setitem__(0, new))

    def draw_and_fail() -> None:
        with restored_random_states():
            state[0] = torch.tensor([8])
            raise ValueError("broke")

    with pytest.raises(ValueError, match="broke"):
        draw_and_fail()
    assert state[0].tolist() == [7]
