"""Every example in the repositories of the five programs is read, or refused with a reason. Only where they are."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.config.from_trainers.importing import translate
from foretune.config.from_trainers.programs import PROGRAMS
from foretune.core.errors import UserError
from tests.config.from_trainers.repositories import FOLDERS, VARIABLE, example_files

ROOT = Path(os.environ.get(VARIABLE, "nowhere"))


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder with the repositories")
@pytest.mark.parametrize("program", FOLDERS)
def test_every_example_is_read_or_refused(program: str, tmp_path: Path, report_figure: Callable[[str], None]) -> None:
    counts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    reasons = []
    for name, path in example_files(program, ROOT, tmp_path):
        try:
            found = translate(path)
        except UserError as error:
            counts["refused"] += 1
            reasons.append(str(error))
            print(f"refused {name}: {error}")
            continue
        counts["read"] += 1
        unknown.update(answer.key for answer in found.keys_with("unknown"))
        assert len(found.answers) == len({answer.key for answer in found.answers}), name
        print(f"read {name}: {found.model}")
    assert all(reason.strip() for reason in reasons)
    assert counts["read"], f"no example of {program} in {ROOT / FOLDERS[program]}"
    report_figure(
        f"{PROGRAMS[program].title}: {counts['read']} read, {counts['refused']} refused, unknown keys: "
        f"{dict(unknown) or 'none'}"
    )
