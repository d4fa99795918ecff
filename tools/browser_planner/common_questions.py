"""The hundred questions that are asked most: popular models on the cards that people own or rent.

Their answers are computed where the site is built, so that the page shows them before it has loaded the planner.
"""

from collections.abc import Iterator

from tools.browser_planner.question import Question

_MODELS = (
    "flux.1-dev",
    "sdxl-unet",
    "qwen-image",
    "z-image",
    "wan2.1-t2v-14b",
    "wan2.1-t2v-1.3b",
    "sd3.5-large",
    "sd3.5-medium",
    "chroma",
    "hunyuanvideo",
    "sd1.5-unet",
    "flux.1-schnell",
    "lumina-image-2.0",
    "ltx-video-0.9",
)
"""The most popular first."""
_CARDS = ("rtx-4090", "rtx-3060", "rtx-4080", "rtx-5090", "h100-sxm")
_MEMORY_SIZES = ("16GiB", "12GiB", "24GiB")
_NUM_MODELS_BY_MEMORY = 8
_IN_FULL = ("flux.1-dev", "sdxl-unet", "sd1.5-unet")
_CARDS_IN_FULL = ("rtx-4090", "h100-sxm")


def common_questions() -> list[Question]:
    """The first is the page's own."""
    return list(_common())


def _common() -> Iterator[Question]:
    for model in _MODELS:
        yield from (Question(model=model, on=card) for card in _CARDS)
    for model in _MODELS[:_NUM_MODELS_BY_MEMORY]:
        yield from (Question(model=model, on=size) for size in _MEMORY_SIZES)
    for model in _IN_FULL:
        yield from (Question(model=model, method="full", on=card) for card in _CARDS_IN_FULL)
