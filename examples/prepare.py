"""Makes what an example needs: a tiny model with random weights and, for ddpm, a folder in the CIFAR-10 layout.

python examples/prepare.py ddpm|sd3|flux
"""

import sys
from pathlib import Path

from PIL import Image

from foretune.cli.quiet import quieten
from foretune.data.sources.shapes import Shapes

HERE = Path(__file__).parent
NUM_IMAGES = 512
SIZE_PX = 32


def write_cifar10_layout(directory: Path) -> None:
    """`cifar-10/train/1.png`, `2.png`, ...: generated shapes stand in for the photographs."""
    train = directory / "cifar-10" / "train"
    train.mkdir(parents=True, exist_ok=True)
    images = Shapes(num_samples=NUM_IMAGES, size_px=SIZE_PX)
    for index in range(NUM_IMAGES):
        Image.fromarray(images.pixels(index)).save(train / f"{index + 1}.png")


def main(family: str) -> None:
    quieten()
    from foretune.models.tiny import write_tiny_pipeline

    work = HERE / "work"
    write_tiny_pipeline(family, work / f"tiny-{family}")
    if family == "ddpm":
        write_cifar10_layout(work)
    print(f"Ready: {work}. Next: foretune train examples/{family}-full.yaml")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("ddpm", "sd3", "flux"):
        sys.exit(__doc__)
    main(sys.argv[1])
