"""Prints what a process sees of the simulated devices, as JSON."""

import json
from itertools import pairwise
from typing import Any

import torch


def workspace_bytes() -> list[int]:
    """Memory that a linear layer of 64 x 64 leaves allocated: before it, after forward, after backward."""
    layer = torch.nn.Linear(64, 64).cuda()
    inputs = torch.ones(64, 64, device="cuda")
    allocated = [torch.cuda.memory_allocated()]
    output = layer(inputs)
    allocated.append(torch.cuda.memory_allocated() - output.untyped_storage().nbytes())
    output.sum().backward()
    layer.zero_grad()
    del output
    allocated.append(torch.cuda.memory_allocated())
    return [after - before for before, after in pairwise(allocated)]


def attention() -> str:
    """Name of the attention that torch chooses for bf16."""
    tensor = torch.ones(1, 1, 8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return type(torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor).grad_fn).__name__


def description() -> dict[str, Any]:
    """Everything that tests compare."""
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "names": [torch.cuda.get_device_name(index) for index in range(len(devices))],
        "capability": torch.cuda.get_device_capability(),
        "uuids": [str(device.uuid) for device in devices],
        "buses": [vars(device)["pci_bus_id"] for device in devices],
        "memory_bytes": devices[0].total_memory,
        "architecture": devices[0].gcnArchName,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "has_bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "has_tf32": torch.cuda.is_tf32_supported(),
        "architectures": torch.cuda.get_arch_list(),
        "workspace_bytes": workspace_bytes(),
        "attention": attention(),
    }


if __name__ == "__main__":
    print(json.dumps(description()))
