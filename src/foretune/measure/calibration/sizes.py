"""The sizes that are measured on a CPU and on an accelerator."""

from dataclasses import dataclass
from itertools import product

_NARROW = 16
"""A LoRA's rank is on one side of a product, not on both."""


@dataclass(frozen=True)
class Convolution:
    """Square images and kernels, with padding, so that the output is as large as the input."""

    images: int
    channels_in: int
    channels_out: int
    side_px: int
    kernel: int = 3

    @property
    def as_product(self) -> tuple[int, int, int]:
        """(m, n, k) of the product that it amounts to."""
        return self.images * self.side_px**2, self.channels_out, self.channels_in * self.kernel**2


@dataclass(frozen=True)
class Sizes:
    """What is measured in one number format, and the memory-bound kernels."""

    products: tuple[tuple[int, int, int], ...]
    batched_products: tuple[tuple[int, int, int, int], ...] = ()
    attention: tuple[tuple[int, int, int, int], ...] = ()
    """(heads of all samples, queries, keys, head_dim)."""
    convolutions: tuple[Convolution, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    copy_bytes: tuple[int, ...] = ()


def product_sizes(rows: tuple[int, ...], widths: tuple[int, ...], most_work: int) -> set[tuple[int, int, int]]:
    """(m, n, k) with at most so many multiplications."""
    found = product(rows, widths, widths)
    return {(m, n, k) for m, n, k in found if m * n * k <= most_work and (n > _NARROW or k > _NARROW)}


def attention_sizes(
    heads: tuple[int, ...], tokens: tuple[int, ...], head_dims: tuple[int, ...], most_work: int
) -> tuple[tuple[int, int, int, int], ...]:
    """Self-attention, and cross-attention to another number of tokens."""
    found = product(heads, tokens, tokens, head_dims)
    return tuple(sizes for sizes in found if sizes[0] * sizes[1] * sizes[2] * sizes[3] <= most_work)


# Dense where small models are, and sparse where kernels reach their full rate and time grows with the work.
_CPU_PRODUCTS = product_sizes((1, 4, 16, 64, 128, 256, 512, 1024, 4096), (4, 16, 64, 128, 256, 512, 1024), 2**25)
_CPU_LARGE_PRODUCTS = product_sizes((16, 64, 256, 1024, 4096), (16, 64, 256, 1024, 4096), 2**28)
_CPU_ATTENTION = attention_sizes((1, 8, 64), (16, 64, 256, 1024), (16, 64, 128), 2**25)
# Torch computes a small convolution of one image by another kernel than one of several, which is measured, too.
_CPU_CONVOLUTIONS = tuple(
    Convolution(*sizes)
    for sizes in (
        *((1, 16, 16, 32), (1, 16, 16, 8), (1, 32, 32, 16), (1, 32, 32, 8), (1, 32, 32, 4), (1, 64, 32, 16)),
        *((1, 64, 64, 16), (1, 64, 64, 8), (1, 128, 128, 16), (1, 128, 128, 4), (1, 256, 256, 8), (1, 512, 512, 4)),
        *((1, 3, 64, 32), (1, 64, 3, 32), (4, 16, 16, 32), (4, 16, 16, 8), (4, 32, 32, 16), (8, 32, 32, 4)),
        *((4, 32, 32, 32), (4, 64, 64, 16), (4, 128, 64, 16), (4, 64, 128, 8), (4, 64, 64, 64), (2, 128, 128, 16)),
        *((2, 128, 128, 32), (4, 128, 128, 4), (4, 256, 256, 8), (1, 320, 320, 16), (8, 16, 16, 16), (1, 512, 256, 16)),
    )
)
_GPU_PRODUCTS = product_sizes((1, 16, 64, 256, 1024, 4096, 16384), (4, 16, 64, 256, 1024, 3072, 12288), 2**38)
_GPU_ATTENTION = attention_sizes((4, 24, 96), (64, 256, 1024, 4096, 16384), (64, 128), 2**36)

ON_CPU = Sizes(
    products=tuple(sorted(_CPU_PRODUCTS | _CPU_LARGE_PRODUCTS)),
    batched_products=((8, 64, 64, 64), (8, 256, 256, 64), (8, 256, 64, 256), (64, 64, 64, 64), (32, 256, 64, 64)),
    attention=_CPU_ATTENTION,
    convolutions=_CPU_CONVOLUTIONS,
    memory_bytes=tuple(2**power for power in range(12, 27, 2)),
)
ON_CPU_COARSE = Sizes(
    products=tuple(sorted(product_sizes((1, 16, 64, 256, 1024), (4, 16, 64, 256, 1024), 2**24))),
    batched_products=ON_CPU.batched_products,
    attention=attention_sizes((1, 8, 64), (64, 256, 1024), (64,), 2**24),
    convolutions=tuple(_CPU_CONVOLUTIONS[at] for at in (4, 14, 21)),
)
ON_GPU = Sizes(
    products=tuple(sorted(_GPU_PRODUCTS)),
    batched_products=((24, 1024, 1024, 64), (24, 1024, 64, 1024), (96, 256, 256, 64), (24, 4096, 4096, 128)),
    attention=_GPU_ATTENTION,
    convolutions=(Convolution(1, 320, 320, 128), Convolution(2, 640, 640, 64), Convolution(2, 1280, 1280, 32)),
    memory_bytes=tuple(2**power for power in range(14, 31, 2)),
    copy_bytes=(2**14, 2**18, 2**22, 2**26, 2**28),
)
ON_GPU_COARSE = Sizes(
    products=tuple(sorted(product_sizes((16, 256, 4096), (16, 256, 3072, 12288), 2**36))),
    batched_products=ON_GPU.batched_products[:2],
    attention=attention_sizes((24,), (256, 1024, 4096), (64, 128), 2**34),
    convolutions=ON_GPU.convolutions[:2],
)
FEW = Sizes(products=((64, 64, 64), (256, 16, 256), (256, 256, 256)))
"""Of a number format that is too slow to be of use."""
