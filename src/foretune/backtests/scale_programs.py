"""How programs that published speeds on many devices communicate, read from their configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretune.planner.timing.communication import Communication, Links, UnitLayout, bucketed, sharded_pass
from foretune.planner.timing.host_operators import Issuer
from foretune.planner.timing.parallel_time import Exchange
from foretune.planner.timing.speed import Collective, DeviceSpeed, Evidence, ProductFormat


@dataclass(frozen=True)
class CapturedSpeed:
    """A device whose kernels are launched by CUDA graphs: the host's time to issue operators is gone."""

    inner: DeviceSpeed

    @property
    def evidence(self) -> Evidence:
        return self.inner.evidence

    def product_s(self, batch: float, m: float, n: float, k: float, number_format: ProductFormat) -> float:
        return self.inner.product_s(batch, m, n, k, number_format)

    def convolution_s(
        self, products: float, batch: float, m: float, n: float, k: float, number_format: ProductFormat
    ) -> float:
        return self.inner.convolution_s(products, batch, m, n, k, number_format)

    def attention_s(
        self,
        batch: float,
        heads: float,
        queries: float,
        keys: float,
        head_dim: float,
        *,
        is_backward: bool,
        is_masked: bool = False,
    ) -> float:
        return self.inner.attention_s(
            batch, heads, queries, keys, head_dim, is_backward=is_backward, is_masked=is_masked
        )

    def bytes_s(self, num_bytes: float) -> float:
        return self.inner.bytes_s(num_bytes)

    def host_bytes_s(self, num_bytes: float) -> float:
        return self.inner.host_bytes_s(num_bytes)

    def launch_s(
        self, *, has_adapters: bool = False, is_recomputed: bool = False, issued_by: Issuer = "modules"
    ) -> float:
        return 0.0

    def update_s(self) -> float:
        return self.inner.update_s()

    def copy_s(self, num_bytes: float) -> float:
        return self.inner.copy_s(num_bytes)

    def collective_s(self, kind: Collective, num_bytes: float, num_devices: int) -> float:
        return self.inner.collective_s(kind, num_bytes, num_devices)


@dataclass(frozen=True, kw_only=True)
class ScaleProgram:
    """A program as existing choices and an exchange."""

    name: str
    """How its name begins in the rows, in lower case."""
    experiment: Mapping[str, Mapping[str, Any]]
    """Sections that differ from this project's defaults."""
    exchange: Exchange
    shares_all: bool
    """Whether states are sharded over all devices; otherwise over those of a machine."""
    is_captured: bool = False
    max_micro_batch: int | None = None
    """Larger batches of a device are accumulated from passes of this size."""
    state_widening: float = 2.0
    """States and their weights are fp32, those of the trace bf16."""
    gradient_widening: float = 1.0
    machine_devices: Mapping[str, int] = field(default_factory=dict)
    """By device, if its machines in these submissions have other than eight."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """What a device's name in the rows was taken for, where the row leaves it open."""
    sources: tuple[str, ...]
    assumptions: tuple[str, ...]


def _nemo(layout: UnitLayout, links: Links, num_passes: int) -> Communication:  # noqa: ARG001
    """Gradients are reduced beside the backward pass; weights are gathered after the update, with nothing beside."""
    reduced = bucketed(layout, links, 288 * 2**20)
    num_bytes = layout.outside.weight_bytes + sum(unit.count * unit.weight_bytes for unit in layout.blocks)
    gathering_s = links.gather_s(num_bytes)
    gathered = Communication(
        total_s=gathering_s,
        exposed_s=gathering_s,
        sent_bytes=num_bytes * links.gathered_share,
        num_collectives=1,
    )
    return reduced.plus(gathered)


def _composer(layout: UnitLayout, links: Links, num_passes: int) -> Communication:
    return Communication().plus(sharded_pass(layout, links, gathers_again=False), num_passes)


def _fully_sharded(layout: UnitLayout, links: Links, num_passes: int) -> Communication:
    return Communication().plus(sharded_pass(layout, links), num_passes)


_SIXTEEN_BIT = {"train": {"precision": "bf16", "weight_dtype": "bf16"}}

NEMO = ScaleProgram(
    name="nemo (mlperf)",
    experiment=_SIXTEEN_BIT,
    exchange=_nemo,
    shares_all=False,
    is_captured=True,
    machine_devices={"l40s": 4, "gb200": 4},
    sources=(
        (
            "github:mlcommons/training_results_v4.0@62f111b7690f:NVIDIA/benchmarks/stable_diffusion/implementations/"
            "nemo/conf/custom.yaml: weights in fp16, channels_last, CUDA graphs after 15 steps, inductor"
        ),
        (
            "the same commit: Oracle/benchmarks/stable_diffusion/implementations/BM.GPU.H100.8/conf/optim/"
            "distributed_fused_adam.yaml: buckets of 288 MB, fp16 gradients and weights are sent, gradients beside the "
            "backward pass, weights not, states sharded within a machine"
        ),
        "the same commit: NVIDIA/.../nemo/config_L40S_16x04x32.sh: four cards in a machine",
    ),
    assumptions=(
        "the other rounds and submitters communicate as Oracle's configuration does",
        "the text encoder, which may run in the two rows of v3.1, takes no time (2 % of the operations)",
        "four devices in a machine with GB200",
        "memory-bound kernels move as much as eager PyTorch's, though inductor fuses some",
    ),
)
COMPOSER = ScaleProgram(
    name="mosaicml composer",
    experiment=_SIXTEEN_BIT,
    exchange=_composer,
    shares_all=True,
    max_micro_batch=16,
    gradient_widening=2.0,
    devices={"A100": "a100-40gb-sxm"},
    sources=(
        (
            "github:mosaicml/diffusion@24caa23ea552:yamls/hydra-yamls/SD-2-base-512.yaml: passes of 16 samples, "
            "SHARD_GRAD_OP"
        ),
    ),
    assumptions=(
        "A100 of 40 GB, as the publisher's other benchmark states",
        "weights are gathered in 16 bits, gradients are reduced in fp32 in each pass",
    ),
)
FLUX_BENCHMARK = ScaleProgram(
    name="accelerate+diffusers",
    experiment=_SIXTEEN_BIT,
    exchange=_fully_sharded,
    shares_all=True,
    state_widening=1.0,
    sources=("the notes of GT0001 and GT0002",),
    assumptions=("no torch.compile: the sweep runs both, and its page does not state which is shown",),
)
PROGRAMS = (NEMO, COMPOSER, FLUX_BENCHMARK)


def program_of(framework: str) -> ScaleProgram | None:
    name = framework.strip().lower()
    return next((program for program in PROGRAMS if name.startswith(program.name)), None)


def with_speed(program: ScaleProgram, speed: DeviceSpeed) -> DeviceSpeed:
    """The device as a program uses it."""
    return CapturedSpeed(speed) if program.is_captured else speed
