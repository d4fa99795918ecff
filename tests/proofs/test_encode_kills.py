"""`foretune data encode` with four workers, two of which are killed in the middle of their part."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foretune.core.observer import Observer
from foretune.data.encoded import HOLDS, LATENTS, TEXT
from foretune.data.shards import ShardLimits, open_set
from foretune.executors.executor import Executor, open_executor
from foretune.executors.task import Resources
from foretune.executors.task_files import read_answer, read_attempts
from foretune.training.encoded_sets.controller import EncodeController, PartResult
from foretune.training.encoded_sets.job import claim, planned_job
from foretune.training.encoded_sets.parts import WORKER
from tests.conftest import ProofSize
from tests.proofs.encode_worker import HELD, HELD_AT
from tests.training.encoded_runs import asked_of, contents, pictures, written

pytestmark = [pytest.mark.proof, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
_HOLDING = "tests.proofs.encode_worker"
_LIMITS = ShardLimits(max_samples=3)


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    executor = open_executor("local", {"jobs": 4, "preload": ["foretune.sweeps.preloaded", _HOLDING], "grace_s": 1.0})
    yield executor
    executor.close()


def test_killed_workers_lose_nothing_and_double_nothing(
    local: Executor,
    tmp_path: Path,
    tiny_pipeline: Callable[..., Path],
    proof_size: ProofSize,
    report_figure: Callable[[str], None],
) -> None:
    num, part_size = proof_size(400, 40), proof_size(80, 8)
    data = {"kind": "folder", "path": str(pictures(tmp_path / "pictures", num)), "resolution": 32, "flip": 0.5,
            "cache_dir": str(tmp_path / "cache"), "max_text_tokens": 16}  # fmt: skip
    experiment = written(tmp_path / "e.yaml", tiny_pipeline("sd3"), tmp_path, data=data)
    killed: list[str] = []
    repeated: list[str] = []

    def kill_held(controller: EncodeController) -> None:
        for name in HELD_AT:
            sign = controller.folder / name / HELD
            if name not in killed and sign.exists():
                killed.append(name)
                os.kill(int(sign.read_text()), signal.SIGKILL)

    def encoded(place: Path, worker: str) -> EncodeController:
        job = planned_job(asked_of(experiment), str(place), part_size, _LIMITS, Observer())
        claim(job)

        def note(result: PartResult, _: object) -> None:
            if result.is_repeated:
                repeated.append(result.name)

        controller = EncodeController(
            job=job,
            tasks=place.with_suffix(".tasks"),
            executor=local,
            resources=Resources(num_cpus=1),
            on_part=note,
            on_look=lambda _progress: kill_held(controller),
            worker=worker,
        )
        assert controller.run() is not None, controller.results
        return controller

    disturbed = encoded(tmp_path / "disturbed", _HOLDING)
    encoded(tmp_path / "undisturbed", WORKER)
    assert sorted(killed) == sorted(repeated) == sorted(HELD_AT)
    found, expected = contents(tmp_path / "disturbed"), contents(tmp_path / "undisturbed")
    different = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
    reader = open_set(str(tmp_path / "disturbed"))
    keys = [reader.sample(number).key for number in range(num)]
    lost = {f"{number:09d}" for number in range(num)} - set(keys)
    num_reused = sum(read_answer(disturbed.folder / name)["num_reused"] for name in HELD_AT)
    attempts = {name: len(read_attempts(disturbed.folder / name)) for name in disturbed.results}
    report_figure(
        f"{num} samples in {len(attempts)} parts by 4 workers, {len(killed)} killed in mid-part: {len(lost)} lost, "
        f"{len(keys) - len(set(keys))} twice, {len(different)} of {len(expected)} files unlike an undisturbed run; "
        f"{num_reused} samples of killed workers were in finished shards"
    )
    assert different == []
    assert not lost
    assert len(set(keys)) == num
    assert attempts == {name: 1 + (name in HELD_AT) for name in disturbed.results}
    assert num_reused == 3, "the shard that was written before the kill"
    assert reader.manifest.holds == HOLDS
    assert all({LATENTS, "flip.safetensors"} <= set(reader.sample(number).members) for number in range(num))
    assert sum(TEXT in reader.sample(number).members for number in range(num)) >= 3
