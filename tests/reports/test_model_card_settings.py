"""Settings on a model card: what was asked beyond the defaults, without folders."""

import yaml

from foretune.choices.experiment import Experiment
from foretune.config.reading import understand
from foretune.reports.model_card import _shown_settings


def experiment_of(**data: object) -> Experiment:
    asked = {"model": "flux.1-dev", "method": {"kind": "lora", "rank": 8}, "data": data, "train": {"steps": 10}}
    return understand(asked, source="a test").experiment


def test_folders_in_a_list_are_shown_without_where_they_are() -> None:
    folders = [{"path": "/home/someone/a", "repeats": 3}, {"path": "/home/someone/b"}]
    shown = _shown_settings(experiment_of(kind="folder", folders=folders))
    text = yaml.safe_dump(shown)
    assert "someone" not in text
    assert yaml.safe_load(text)["data"]["folders"][0] == {"repeats": 3}
