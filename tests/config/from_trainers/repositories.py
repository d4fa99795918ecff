"""The example configurations in the repositories of other trainers, where these are: files, and blocks of pages."""

import re
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "FORETUNE_TRAINER_REPOSITORIES"
"""A folder with the repositories, each in a folder of the name below."""
FOLDERS = {
    "simpletuner": "SimpleTuner",
    "ai-toolkit": "ai-toolkit",
    "sd-scripts": "sd-scripts",
    "onetrainer": "OneTrainer",
    "diffusers": "diffusers",
}
_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_FILES = {
    "simpletuner": ("simpletuner/examples/*/config.json", "config/config.json.example"),
    "ai-toolkit": (
        "config/examples/**/*.y*ml",
        "extensions*/**/config/*.yaml",
    ),
    "onetrainer": ("training_presets/*/*.json",),
}
_PAGES = {"sd-scripts": ("docs/*.md", "README*.md"), "diffusers": ("examples/**/*.md", "examples/**/*.sh")}


def example_files(program: str, root: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Each example with its name; blocks of pages are written to `scratch`."""
    folder = root / FOLDERS[program]
    for pattern in _FILES.get(program, ()):
        for path in sorted(folder.glob(pattern)):
            yield path.relative_to(folder).as_posix(), path
    for pattern in _PAGES.get(program, ()):
        for page in sorted(folder.glob(pattern)):
            name = page.relative_to(folder).as_posix()
            for number, (suffix, text) in enumerate(_blocks(page)):
                place = scratch / f"{name.replace('/', '-')}-{number}{suffix}"
                place.write_text(text, encoding="utf-8")
                yield f"{name} block {number}", place


def _blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Blocks that start a training or hold options, each with the variables that blocks before it set."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".sh":
        if re.search(r"train_\w+\.py", text):
            yield ".sh", text
        return
    variables = ""
    for indent, language, body in _BLOCK.findall(text):
        plain = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        if language == "toml":
            yield ".toml", plain
        elif re.search(r"\b(accelerate launch|torchrun|python3?)\b[^\n]*", plain) and re.search(
            r"[\w/]*(?:train|tune)\w*\.py", plain
        ):
            yield ".sh", variables + plain
        exports = re.findall(r"^ *(?:export )?[A-Z_]+=.*$", plain, re.MULTILINE)
        variables += "".join(f"{line.strip()}\n" for line in exports)
