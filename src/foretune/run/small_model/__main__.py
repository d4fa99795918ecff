"""Makes the shipped model again: its start, then `foretune train`, then the files that ship.

python -m foretune.run.small_model start ./start               a trained autoencoder, everything else random
foretune train earlier-recipe.yaml                             the denoiser; the recipes are among the shipped files
python -m foretune.run.small_model ship RUN ./first
foretune train recipe.yaml                                     goes on from there
python -m foretune.run.small_model ship RUN FOLDER             what ships
python -m foretune.run.small_model check FOLDER                how many of its images show their captions
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from foretune.run.small_model.autoencoder import train_autoencoder
from foretune.run.small_model.checking import check_captions
from foretune.run.small_model.files import ship, write_start
from foretune.run.small_model.pipeline import build_pipeline

_NUM_STEPS = 3600
_NUM_DECODER_STEPS = 900
_NUM_IMAGES = 16_000


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    made = argparse.ArgumentParser(
        prog="python -m foretune.run.small_model", description=(__doc__ or "").split("\n")[0]
    )
    verbs = made.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("start", help="train the autoencoder and write a pipeline around it")
    start.add_argument("folder", type=Path)
    start.add_argument("--steps", type=int, default=_NUM_STEPS, help="of the autoencoder's training")
    start.add_argument("--seed", type=int, default=0)
    shipped = verbs.add_parser("ship", help="write the files that ship")
    shipped.add_argument("run", type=Path)
    shipped.add_argument("folder", type=Path)
    check = verbs.add_parser("check", help="sample captions it has not seen, and read the images")
    check.add_argument("folder", type=Path)
    check.add_argument("--num", type=int, default=402, help="how many images")
    check.add_argument("--steps", type=int, default=28, help="denoising steps of each")
    return made


def main() -> None:
    """Reads the arguments and does one of these."""
    asked = parser().parse_args()
    if asked.verb == "start":
        fit = train_autoencoder(asked.steps, min(asked.steps, _NUM_DECODER_STEPS), _NUM_IMAGES, asked.seed, _tell)
        write_start(build_pipeline(fit.vae, asked.seed), asked.folder)
        _say({"psnr_db_by_style": fit.psnr_db_by_style})
    elif asked.verb == "ship":
        ship(asked.run, asked.folder)
        _say({"written": str(asked.folder)})
    else:
        _say(check_captions(asked.folder, num_images=asked.num, num_steps=asked.steps).to_mapping())


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _tell(step: int, error: float) -> None:
    if step % 100 == 0:
        sys.stderr.write(f"step {step}: mean square error {error:.5f}\n")


if __name__ == "__main__":
    main()
