"""The page on quality: it names every metric and option, and its figures are those of the program."""

import inspect
import re
from pathlib import Path

from foretune.cli.evaluate import evaluate
from foretune.quality import fid, kid, memorisation, similarity
from foretune.quality.metrics import METRICS
from foretune.quality.request import LEVELS
from foretune.quality.scoring import DIFFERENCES_CONFIDENCE

PAGE = (Path(__file__).parents[2] / "docs" / "quality.md").read_text(encoding="utf-8")


def test_every_metric_is_explained() -> None:
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert set(METRICS) <= named


def test_every_named_option_is_there() -> None:
    options = {
        option
        for parameter in inspect.signature(evaluate, eval_str=True).parameters.values()
        for info in (parameter.annotation.__metadata__[0],)
        for option in (info.default, *(info.param_decls or ()))
    }
    named = set(re.findall(r"(--[a-z][a-z-]+)", PAGE)) - {"--metrics"}
    assert named <= options


def test_figures_are_those_of_the_program() -> None:
    assert f"refused below {fid.FEWEST_IMAGES:,}, and below {fid.IMAGES_PER_FEATURE:g} for each feature" in PAGE
    assert f"{fid.fewest_images(2048):,} with 2,048 features" in PAGE
    assert f"KID | {kid.FEWEST_IMAGES} images" in PAGE
    assert f"images of {similarity._MS_SSIM_LEAST_PX} px" in PAGE
    assert f"needs {memorisation._FEWEST_HELD_OUT} held-out images" in PAGE
    assert f"together hold with {DIFFERENCES_CONFIDENCE:.0%}".replace("%", " %") in PAGE
    assert f"noised to {LEVELS[0]}, {LEVELS[1]} and {LEVELS[2]} of all levels" in PAGE
