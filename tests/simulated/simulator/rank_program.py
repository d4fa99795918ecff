"""One of two ranks of the simulated NCCL; prints its results as JSON. Usage: rank_program.py RANK STORE"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

import simaccel


def results(rank: int, size: int) -> dict[str, Any]:
    """Collectives with numbers that name their rank."""
    mine = torch.full((4,), float(rank + 1), device="cuda")
    total = mine.clone()
    dist.all_reduce(total)
    mean = mine.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    gathered = torch.empty(4 * size, device="cuda")
    dist.all_gather_into_tensor(gathered, mine)
    scattered = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(scattered, mine)
    sent = mine.clone()
    dist.broadcast(sent, 0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False).cuda(), device_ids=[rank])
    model(mine.unsqueeze(0)).sum().backward()
    (weight,) = model.parameters()
    assert weight.grad is not None
    return {
        "total": total.tolist(),
        "mean": mean.tolist(),
        "gathered": gathered.tolist(),
        "scattered": scattered.tolist(),
        "sent": sent.tolist(),
        "gradient": weight.grad.tolist(),
        "findings": simaccel.findings(clear=True),
    }


def early() -> list[str]:
    """Uses a result of an asynchronous collective, once after waiting for it and once before."""
    messages = []
    for waits in (True, False):
        total = torch.ones(4, device="cuda")
        work = dist.all_reduce(total, async_op=True)
        assert work is not None
        try:
            if waits:
                work.wait()
            total + 1
        except RuntimeError as error:
            messages.append(str(error).splitlines()[0])
        work.wait()
        torch.cuda.synchronize()
    return messages


def main(rank: int, store: str) -> None:
    """Runs all programs in one group."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    print(json.dumps({**results(rank, 2), "early": early()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
