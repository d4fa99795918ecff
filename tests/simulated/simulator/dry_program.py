"""Trains a few steps in dry mode and prints what it took, as JSON."""

import json

import torch

import simaccel
from foretune.training.devices import peak_host_bytes

WIDTH, TOKENS = 4096, 8192


def main() -> None:
    """Gigabytes of weights and activations, on a machine that need not have them."""
    layers = torch.nn.Sequential(
        *[torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    )
    optimizer = torch.optim.AdamW(layers.parameters(), fused=True)
    losses = []
    for _ in range(2):
        loss = layers(torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    schedule = torch.linspace(0, 1, 5, device="cuda")
    print(
        json.dumps(
            {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "host_bytes": peak_host_bytes(),
                "losses": losses,
                "schedule": schedule.tolist(),
                "assumptions": [text.splitlines()[0] for text in simaccel.device.assumptions()],
                "num_operators": simaccel.device.dry_counts()["operators"],
            }
        )
    )


if __name__ == "__main__":
    main()
