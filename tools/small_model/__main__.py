"""Makes the shipped model again: its start, then `foretune train`, then the files that ship.

python -m tools.small_model start ./start               a trained autoencoder, everything else random
foretune train earlier-recipe.yaml                             the denoiser; the recipes are among the shipped files
python -m tools.small_model ship RUN ./first
foretune train recipe.yaml                                     goes on from there
python -m tools.small_model ship RUN FOLDER             what ships
python -m tools.small_model check FOLDER                how many of its images show their captions

What ships took half an hour. To see every part do its work in a minute, start with
`--steps 30 --decoder-steps 10 --images 200` and train with `train.steps=30 data.num_samples=200`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretune.core.errors import UserError
from foretune.core.thread_waiting import wait_passively

_NUM_STEPS = 3600
_NUM_DECODER_STEPS = 900
_NUM_IMAGES = 16_000


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    made = argparse.ArgumentParser(prog="python -m tools.small_model", description=(__doc__ or "").split("\n")[0])
    verbs = made.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("start", help="train the autoencoder and write a pipeline around it")
    start.add_argument("folder", type=Path)
    start.add_argument("--steps", type=_count, default=_NUM_STEPS, help="of the autoencoder's training")
    start.add_argument(
        "--decoder-steps",
        type=_count,
        default=_NUM_DECODER_STEPS,
        help="in which the decoder is trained on, once channels have been left out",
    )
    start.add_argument("--images", type=_count, default=_NUM_IMAGES, help="how many to train on, of all styles in turn")
    start.add_argument("--seed", type=int, default=0)
    shipped = verbs.add_parser("ship", help="write the files that ship")
    shipped.add_argument("run", type=Path)
    shipped.add_argument("folder", type=Path)
    check = verbs.add_parser("check", help="sample captions it has not seen, and read the images")
    check.add_argument("folder", type=Path)
    check.add_argument("--num", type=_count, default=402, help="how many images")
    check.add_argument("--steps", type=_count, default=28, help="denoising steps of each")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the arguments and does one of these; 2 where they ask for what is not there."""
    asked = parser().parse_args(arguments)
    wait_passively()
    try:
        _say(_done(asked))
    except UserError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


def _done(asked: argparse.Namespace) -> dict[str, Any]:
    # Imported here: how threads wait is decided before torch is loaded.
    from tools.small_model.autoencoder import train_autoencoder
    from tools.small_model.checking import check_captions
    from tools.small_model.files import ship, write_start
    from tools.small_model.pipeline import build_pipeline

    if asked.verb == "start":
        fit = train_autoencoder(asked.steps, asked.decoder_steps, asked.images, asked.seed, _tell)
        write_start(build_pipeline(fit.vae, asked.seed), asked.folder)
        return {"written": str(asked.folder), "psnr_db_by_style": fit.psnr_db_by_style}
    if asked.verb == "ship":
        ship(asked.run, asked.folder)
        return {"written": str(asked.folder)}
    if not (asked.folder / "model_index.json").is_file():
        raise UserError(f"{asked.folder} holds no pipeline: there is no model_index.json in it.")
    return check_captions(asked.folder, num_images=asked.num, num_steps=asked.steps).to_mapping()


def _count(text: str) -> int:
    """One or more, whatever is counted."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is too few: 1 is the least")
    return count


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _tell(step: int, error: float) -> None:
    if step % 100 == 0:
        sys.stderr.write(f"step {step}: mean square error {error:.5f}\n")


if __name__ == "__main__":
    sys.exit(main())
