"""S5: no image ends the process that reads it, takes long, or makes it read a format that is not on the list.

All are read by one process, as training reads them: its end would be the end of the training. Controls: ordinary images
of every format on the list are read; Pillow without the list opens a format that is not on it.
"""

import io
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foretune.core.errors import UserError
from foretune.data.images import FORMATS, decode, size_px
from tests.conftest import ProofSize
from tests.proofs.fork_server import ForkServer
from tests.proofs.hostile_images import ALL
from tests.proofs.hostile_reading import limit_resources
from tests.proofs.rotation import turn
from tests.waiting import HANG_S

pytestmark = pytest.mark.proof
_MOST_PROCESSOR_S = 2.0


def decode_all(names: list[str], answers: str) -> None:
    """Reads these images one after the other: for the fork server."""
    limit_resources()
    with Path(answers).open("a") as log:
        for name in names:
            content = ALL[name].make()
            began_s = time.process_time()
            try:
                size_px(content, f"{name}.png")
                end, message = "read", str(decode(content, f"{name}.png").shape)
            except UserError as error:
                end, message = "refused", str(error)
            except BaseException:  # noqa: BLE001 - whatever it is, it is the answer
                end, message = "crashed", traceback.format_exc()
            found = {"name": name, "end": end, "message": message, "processor_s": time.process_time() - began_s}
            log.write(json.dumps(found) + "\n")
            log.flush()


def fault_of(found: dict[str, Any]) -> str | None:
    """What is wrong with how an image was met."""
    if found["end"] == "crashed" or (ALL[found["name"]].is_refused and found["end"] != "refused"):
        return f"{found['end']}: {found['message'][-800:]}"
    if found["end"] == "refused" and found["name"] not in found["message"]:
        return f"the message does not name it: {found['message']}"
    if found["processor_s"] > _MOST_PROCESSOR_S:
        return f"took {found['processor_s']:.1f} s of processor time"
    return None


def test_s5_no_image_ends_the_process(
    tmp_path: Path, fork_server: ForkServer, proof_size: ProofSize, report_figure: Callable[[str], None]
) -> None:
    every = proof_size(1, 4)
    names = list(ALL)[turn() % every :: every]
    answers = tmp_path / "answers.jsonl"
    child = fork_server.start("tests.proofs.test_s5_hostile_images:decode_all", names=names, answers=str(answers))
    code = child.wait(limit_s=10 * HANG_S)
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert code == 0, f"it ended with {code} after {found[-1]['name'] if found else 'the start'}"
    assert [one["name"] for one in found] == names
    report_figure(
        f"{len(found)} of {len(ALL)} hostile images: the process ended 0 times, "
        f"{sum(one['end'] == 'refused' for one in found)} refused by name, "
        f"{sum(one['end'] == 'read' for one in found)} read, at most "
        f"{max(one['processor_s'] for one in found):.2f} s of processor time"
    )
    assert {one["name"]: fault for one in found if (fault := fault_of(one)) is not None} == {}


def test_s5_there_are_enough_of_them() -> None:
    assert len(ALL) >= 80


@pytest.mark.parametrize("form", FORMATS)
def test_s5_control_ordinary_images_are_read(form: str) -> None:
    written = io.BytesIO()
    Image.new("RGB", (64, 48)).save(written, format=form)
    assert decode(written.getvalue(), "a").shape == (48, 64, 3)


def test_s5_control_without_the_list_other_formats_are_opened() -> None:
    assert Image.open(io.BytesIO(ALL["not_read_gif_file"].make())).format == "GIF"
