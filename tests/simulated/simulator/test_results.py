"""What programs compute, and how torch's switches and queries behave."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import simaccel

pytestmark = [pytest.mark.simulated, pytest.mark.usefixtures("simulated_gpu")]


def network(torch: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.SiLU(),
        torch.nn.Flatten(2),
        torch.nn.Linear(64, 16),
        torch.nn.LayerNorm(16),
        torch.nn.MultiheadAttention(16, 2, batch_first=True),
    )


def trained(torch: Any, device: str) -> dict[str, Any]:
    *layers, attention = network(torch).to(device)
    parameters = [parameter for layer in (*layers, attention) for parameter in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    images = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8).to(device)
    losses = []
    for _ in range(3):
        hidden = images
        for layer in layers:
            hidden = layer(hidden)
        loss = attention(hidden, hidden, hidden, need_weights=False)[0].pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "parameters": [parameter.detach().cpu() for parameter in parameters]}


def test_dropout_draws_from_the_generator_of_its_device() -> None:
    import torch

    def states() -> list[Any]:
        return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]

    before, values = states(), torch.ones(64, device="cuda:1")
    first = torch.nn.functional.dropout(values, 0.5)
    assert [torch.equal(*pair) for pair in zip(before, states(), strict=True)] == [True, True, False]
    torch.cuda.set_rng_state(before[2], 1)
    assert torch.equal(torch.nn.functional.dropout(values, 0.5), first)


def test_training_equals_the_cpu_to_the_bit() -> None:
    import torch

    ours, cpus = trained(torch, "cuda"), trained(torch, "cpu")
    assert ours["losses"] == cpus["losses"]
    assert all(map(torch.equal, ours["parameters"], cpus["parameters"]))


@pytest.mark.parametrize(
    "compute",
    [
        lambda torch, x: x.cumsum(0),
        lambda torch, x: x[x > 0],
        lambda torch, x: x.nonzero(),
        lambda torch, x: torch.stack([x, x.flip(0)]).transpose(0, 1).contiguous(),
        lambda torch, x: torch.fft.fft(x).abs(),
        lambda torch, x: torch.linalg.svd(x.reshape(4, 4))[1],
        lambda torch, x: x.to(torch.bfloat16).float(),
        lambda torch, x: x.sort(descending=True).values,
        lambda torch, x: torch.nn.functional.interpolate(x.reshape(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
        lambda torch, x: torch.cat(torch._foreach_mul([x, x], 2.0)),
        lambda torch, x: torch.zeros(2, device=x.device).resize_(32).copy_(x.repeat(2)),
        lambda torch, x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
        lambda torch, x: x.index_put((torch.arange(3),), torch.zeros(3, device=x.device)),
        lambda torch, x: x.conj().resolve_conj().view(torch.int32),
    ],
)
def test_operators_equal_the_cpu(compute: Callable[[Any, Any], Any]) -> None:
    import torch

    numbers = torch.linspace(-2, 2, 16)
    ours = compute(torch, numbers.cuda())
    assert ours.device == torch.device("cuda", 0)
    assert torch.equal(ours.cpu(), compute(torch, numbers))


def test_attention_saves_what_a_gpus_kernels_save() -> None:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(1, 2, 8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    output = attend(q, k, v)
    assert type(output.grad_fn).__name__ == "ScaledDotProductFlashAttentionBackward0"
    masked = attend(q, k, v, attn_mask=torch.zeros(8, 8, device="cuda", dtype=torch.bfloat16))
    assert type(masked.grad_fn).__name__ == "ScaledDotProductEfficientAttentionBackward0"
    (output + masked).sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (q, k, v))


@pytest.mark.parametrize(
    "compute",
    [
        lambda torch, x: torch.histogram(x, bins=4),
        lambda torch, x: x.to_mkldnn(),
        lambda torch, x: torch.ops.aten.narrow_copy.out(x, 0, 0, 1, out=torch.empty(1, device="cuda")),
    ],
)
def test_operators_that_no_gpu_has_are_refused(compute: Callable[[Any, Any], Any]) -> None:
    import torch

    with pytest.raises(NotImplementedError, match="with arguments from the 'CUDA' backend"):
        compute(torch, torch.ones(4, device="cuda"))


def test_generators_save_and_restore_their_state() -> None:
    import torch

    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.randn(8, device="cuda").cpu()
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(8, device="cuda").cpu(), first)
    with torch.random.fork_rng(devices=[0, 1]):
        torch.randn(8, device="cuda")
        inside = torch.randn(8, device="cuda:1").cpu()
    assert torch.equal(torch.randn(8, device="cuda:1").cpu(), inside)
    generator = torch.Generator("cuda").manual_seed(3)
    assert torch.equal(torch.randn(8, device="cuda", generator=generator).cpu(), first)
    copy = generator.clone_state()
    assert torch.equal(
        torch.randn(8, device="cuda", generator=generator), torch.randn(8, device="cuda", generator=copy)
    )


def test_the_host_has_a_generator_of_its_own() -> None:
    import torch

    state = torch.get_rng_state()
    torch.randn(8, device="cuda")
    assert torch.equal(torch.get_rng_state(), state)


def test_half_precision_trains_with_a_loss_scaler() -> None:
    import torch

    weight = torch.ones(4, device="cuda", requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cuda", init_scale=1024)
    with torch.autocast("cuda", torch.float16):
        product = weight.reshape(2, 2) @ weight.reshape(2, 2)
        assert product.dtype == torch.float16
    scaler.scale(product.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == pytest.approx([1 - 0.4] * 4, abs=1e-3)


@pytest.fixture
def sync_mode() -> Iterator[Callable[[str], None]]:
    import torch

    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


CHECKED_WAITS: list[Callable[[Any, Any], object]] = [
    lambda torch, x: x.sum().item(),
    lambda torch, x: x.cpu(),
    lambda torch, x: torch.ones(3).cuda(),
    lambda torch, x: x.nonzero(),
    lambda torch, x: x[x > 0],
    lambda torch, x: torch.cuda.current_stream().synchronize(),
]
UNCHECKED_WAITS: list[Callable[[Any, Any], object]] = [
    lambda torch, x: torch.cuda.synchronize(),
    lambda torch, x: torch.cuda.current_stream().record_event().synchronize(),
    lambda torch, x: torch.ones(3).to("cuda", non_blocking=True),
]


@pytest.mark.parametrize("wait", CHECKED_WAITS)
def test_the_debug_mode_finds_the_waits_that_torch_checks(wait: Callable[[Any, Any], object], sync_mode: Any) -> None:
    import torch

    tensor = torch.ones(4, device="cuda")
    sync_mode("error")
    assert torch.cuda.get_sync_debug_mode() == 2
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        wait(torch, tensor)
    sync_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wait(torch, tensor)
    assert any("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)
    sync_mode("default")
    wait(torch, tensor)


@pytest.mark.parametrize("wait", UNCHECKED_WAITS)
def test_other_waits_are_listed_all_the_same(wait: Callable[[Any, Any], object], sync_mode: Any) -> None:
    import torch

    tensor = torch.ones(4, device="cuda")
    sync_mode("error")
    simaccel.waits(clear=True)
    wait(torch, tensor)
    (listed,) = simaccel.waits(clear=True)
    assert "test_results.py" in listed.stack


@pytest.mark.parametrize(
    "work",
    [
        lambda torch, x: torch.nn.functional.linear(x.reshape(2, 2), x.reshape(2, 2)),
        lambda torch, x: x.to(torch.bfloat16),
        lambda torch, x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
        lambda torch, x: x[1:3] + x[torch.arange(2, device="cuda")],
        lambda torch, x: torch.cuda.current_stream().record_event().query(),
    ],
)
def test_work_without_a_wait_is_not_listed(work: Callable[[Any, Any], object]) -> None:
    import torch

    tensor = torch.ones(4, device="cuda")
    simaccel.waits(clear=True)
    work(torch, tensor)
    assert [wait.reason for wait in simaccel.waits(clear=True)] == []
