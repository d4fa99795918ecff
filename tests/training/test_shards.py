"""Training on a packed set: from the experiment to the record, with pixels and with cached latents."""

from collections.abc import Callable
from pathlib import Path

import pytest

from foretune.choices.data import ShardsData
from foretune.core.errors import UserError
from foretune.data.buckets import Bucket
from foretune.data.sources import open_source
from foretune.data.split import split
from tests.data.shards.packed import sample, write_set
from tests.training.short_runs import losses_of, short_run


@pytest.mark.parametrize("family", ["ddpm", "flux"])
def test_training_on_shards_is_the_same_run_after_run(
    family: str, tiny_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    manifest = write_set(tmp_path / "set", (sample(n, 32, 32) for n in range(20)), per_shard=5)
    data = {
        "kind": "shards",
        "path": str(tmp_path / "set"),
        "resolution": 32,
        "cache_dir": str(tmp_path / "cache"),
        "held_out": 0.2,
        "max_text_tokens": 16 if family == "flux" else None,
        "shuffle_shards": 2,
    }
    one, other = (short_run(tiny_pipeline(family), tmp_path / name, data=data) for name in "ab")
    assert one.record.outcome.status == "finished"
    assert len(losses_of(one.run)) == 3
    assert losses_of(one.run) == losses_of(other.run)
    _, _, effective = one.run.read_experiment()
    train, held_out = split(open_source(ShardsData.model_validate(data), largest=Bucket(32, 32)), 0.2)
    assert len(train) + len(held_out) == manifest.num_samples
    assert effective["num_train_samples"] == len(train)
    assert effective["num_held_out_samples"] == min(len(held_out), 3)  # of which a short run looks at three
    assert effective["num_steps_per_epoch"] == -(-effective["num_train_samples"] // 2)


def test_missing_set_is_named(tiny_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    data = {"kind": "shards", "path": str(tmp_path / "empty"), "resolution": 32, "cache_dir": str(tmp_path / "cache")}
    with pytest.raises(UserError, match=r"is not a packed set: it has no shards\.json"):
        short_run(tiny_pipeline("ddpm"), tmp_path, data=data)
