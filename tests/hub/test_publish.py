"""`foretune publish`: a tiny run, its card, and a hub on this machine that receives it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

import foretune as ft
from foretune.analyse.evaluations import EVALUATION_FILE
from foretune.config.reading import understand
from foretune.core.errors import UserError
from foretune.core.units import bytes_text, rate_text
from foretune.record.run_directory import RunDirectory
from foretune.reports.publication import PublicExport, base_of, write_card
from tests.forked_python import ForkedPython
from tests.hub.client import TOKEN, Client
from tests.hub.hub_server import HubServer, running_hub

REPO = "me/my-lora"
PROMPT = "a small red circle on blue"
EXPORT = PublicExport(REPO, "  pipe = diffusers.FluxPipeline()", "40 of 40 tensors", None)


@dataclass(frozen=True)
class Work:
    """A folder with a run in it that has been evaluated and published for trial."""

    folder: Path
    run: ft.Run
    evaluation: Any
    published: ft.PublishedRun


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, forked_python: ForkedPython) -> Iterator[Work]:
    folder = tmp_path_factory.mktemp("publishing")
    before = Path.cwd()
    os.chdir(folder)
    ft.tiny("flux", "tiny-flux")
    experiment = {
        "name": "secret-project",
        "model": str(folder / "tiny-flux"),
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "num_samples": 30, "resolution": 32, "held_out": 0.4},
        "train": {"steps": 4, "batch_size": 2, "precision": "fp32"},
        "validate": {"every": 2, "prompts": [PROMPT], "num_inference_steps": 1},
        "parallel": {"device": "cpu"},
    }
    run = ft.train(experiment)
    (evaluation,) = ft.evaluate(run, metrics=["memorisation", "loss"], steps=1, num_prompts=4, seeds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(forked_python.python))
        published = ft.publish(run, REPO, dry_run=True)
    yield Work(folder, run, evaluation, published)
    os.chdir(before)


@pytest.fixture
def copied(work: Work, tmp_path: Path) -> RunDirectory:
    """The run once more, to change its files."""
    shutil.copytree(work.run.path.resolve(), tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "publish"))
    return RunDirectory.open(tmp_path / "copy")


def card_of(directory: RunDirectory, tmp_path: Path, licence: str | None = None) -> str:
    folder = tmp_path / "card"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return write_card(directory, folder, base_of(directory), EXPORT, licence)


def metadata(card: str) -> dict[str, Any]:
    """As huggingface_hub reads them."""
    read: Any = ModelCard(card).data
    return dict(read.to_dict())


def change_json(path: Path, **changes: Any) -> None:
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, **changes}))


def test_the_folder_holds_what_is_listed(work: Work) -> None:
    published = work.published
    assert published.url is None
    assert published.folder == work.run.path / "publish"
    names = {name for name, _ in published.files}
    assert names == {"README.md", "pytorch_lora_weights.safetensors", "samples/step-000000004-0.png"}
    assert all((published.folder / name).stat().st_size == size for name, size in published.files)
    sample = work.run.path / "samples" / "step-000000004-0.png"
    assert (published.folder / "samples" / sample.name).read_bytes() == sample.read_bytes()
    assert (published.folder / "README.md").read_text() == published.card
    assert published.card in str(published)
    assert "pytorch_lora_weights.safetensors" in str(published)


def test_the_metadata_are_those_of_a_model_card(work: Work) -> None:
    data = metadata(work.published.card)
    assert data["library_name"] == "diffusers"
    assert data["pipeline_tag"] == "text-to-image"
    assert data["tags"] == ["foretune", "diffusers", "lora"]
    assert data["widget"] == [{"text": PROMPT, "output": {"url": "samples/step-000000004-0.png"}}]
    assert "base_model" not in data  # a folder of this machine is none on the Hub


def test_the_card_has_the_figures_of_the_record(work: Work) -> None:
    card, record = work.published.card, work.run.record
    assert record is not None
    assert record.plan is not None
    measured = record.measured
    assert measured.samples_per_s is not None
    assert measured.peak_host_bytes is not None
    assert f"Speed {rate_text(measured.samples_per_s, 'sample')}" in card
    assert f"estimated {bytes_text(record.plan.at_peak.process_bytes)}" in card
    assert f"measured {bytes_text(measured.peak_host_bytes)}" in card
    assert "40 of 40 tensors arrived bit for bit; same-seed images differ by 0 at most" in card
    assert f'pipe.load_lora_weights("{REPO}")' in card
    for name in ("torch", "diffusers"):
        assert f"{name} {record.environment['packages'][name]}" in card
    copies = work.evaluation.score("copies")
    assert copies is not None
    assert f"| copies (lower is better) | {work.evaluation.score('copies', 'base').value:.2f} |" in card
    assert f"{copies.low:.2f} to {copies.high:.2f}" in card
    assert "Memorisation: `copies` is the share of samples" in card
    assert "Not enough steps: 4 of 50. Do not read the differences as better or worse." in card


def test_the_settings_can_be_used_again(work: Work) -> None:
    text = work.published.card.partition("```yaml\n")[2].partition("```")[0]
    settings = yaml.safe_load(text)
    assert settings["model"] == "tiny-flux"
    assert settings["train"] == {"steps": 4, "batch_size": 2, "precision": "fp32"}
    assert settings["validate"]["prompts"] == [PROMPT]
    understood = understand({**settings, "model": "flux.1-dev"}, source=None).experiment
    for section in ("method", "data", "train", "validation"):
        assert getattr(understood, section) == getattr(work.run.experiment, section)


def test_a_run_of_enough_steps_says_what_its_evaluation_found(work: Work, copied: RunDirectory, tmp_path: Path) -> None:
    outcome = json.loads((copied.path / "record.json").read_text())["outcome"]
    change_json(copied.path / "record.json", outcome={**outcome, "steps_done": 60})
    card = card_of(copied, tmp_path)
    assert "Not enough steps" not in card
    assert "secret-project (lora)" in card  # the label of the evaluation


def test_no_folder_of_this_machine_is_published(work: Work) -> None:
    for path in work.published.folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for place in (work.folder, Path.home(), Path(ft.__file__).parent):
            assert str(place).encode() not in content, path


def test_another_record_makes_another_card(work: Work, copied: RunDirectory, tmp_path: Path) -> None:
    before = card_of(copied, tmp_path)
    record = json.loads((copied.path / "record.json").read_text())
    changed = {"samples_per_s": 123.0, "peak_host_bytes": 7 * 2**30, "held_out_losses": [[0, 5.0], [4, 2.5]]}
    change_json(copied.path / "record.json", measured={**record["measured"], **changed}, num_trainable_params=321)
    after = card_of(copied, tmp_path)
    for figure in ("Speed 123 samples/s", "measured 7.00 GiB", "5.0000 (step 0) to 2.5000 (step 4): -50.0%", "321 of"):
        assert figure in after
        assert figure not in before
    scores = json.loads((copied.path / EVALUATION_FILE).read_text())["scores"]
    for score in scores:
        if score["metric"] == "copies":
            score.update(value=0.625, low=0.5, high=0.75)
    change_json(copied.path / EVALUATION_FILE, scores=scores)
    assert "0.62 | 0.50 to 0.75" in card_of(copied, tmp_path)
    (copied.path / EVALUATION_FILE).unlink()
    assert "## Quality" not in card_of(copied, tmp_path)
    (copied.path / "record.json").unlink()
    with pytest.raises(UserError, match="has no record"):
        card_of(copied, tmp_path)


def test_a_base_of_the_hub_is_named_with_its_licence(work: Work, copied: RunDirectory, tmp_path: Path) -> None:
    path = copied.path / "experiment.yaml"
    stored = yaml.safe_load(path.read_text())
    commit = "0123456789abcdef0123456789abcdef01234567"

    def ask_for(model: str) -> None:
        stored["resolved"]["model"] = model
        stored["effective"]["model_revision"] = commit
        path.write_text(yaml.safe_dump(stored))

    ask_for("flux.1-dev")
    assert base_of(copied).argument == f'"black-forest-labs/FLUX.1-dev", revision="{commit}"'
    card = card_of(copied, tmp_path)
    data = metadata(card)
    assert data["base_model"] == "black-forest-labs/FLUX.1-dev"
    assert data["license"] == "other"
    assert data["license_name"] == "flux-1-dev-non-commercial-license"
    assert f"commit `{commit}`" in card
    ask_for("owner/not-in-the-catalogue")
    unknown = card_of(copied, tmp_path)
    assert "license" not in metadata(unknown)
    assert "see https://huggingface.co/owner/not-in-the-catalogue" in unknown
    assert metadata(card_of(copied, tmp_path, "mit"))["license"] == "mit"


def test_text_of_a_run_is_no_markup(work: Work, copied: RunDirectory, tmp_path: Path) -> None:
    path = copied.path / "experiment.yaml"
    stored = yaml.safe_load(path.read_text())
    stored["resolved"]["validate"]["prompts"] = ["a | b <script>alert(1)</script> ](evil)"]
    path.write_text(yaml.safe_dump(stored))
    card = card_of(copied, tmp_path)
    body = card.partition("\n# ")[2].partition("```yaml")[0]
    assert "<script>" not in body
    assert "](evil)" not in body.replace("\\](evil)", "")


def test_a_sample_that_leads_elsewhere_is_refused(work: Work, copied: RunDirectory, tmp_path: Path) -> None:
    sample = copied.path / "samples" / "step-000000004-0.png"
    sample.unlink()
    (tmp_path / "private.png").write_bytes(b"mine")
    sample.symlink_to(tmp_path / "private.png")
    with pytest.raises(UserError, match="outside of"):
        card_of(copied, tmp_path)


def test_names_and_folders_that_are_none_are_refused(work: Work, copied: RunDirectory) -> None:
    with pytest.raises(UserError, match="is not the name of a repository"):
        ft.publish(copied.path, "my-lora", dry_run=True)
    (copied.path / "publish").symlink_to(work.folder)
    with pytest.raises(UserError, match="is not a folder"):
        ft.publish(copied.path, REPO, dry_run=True)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with running_hub(tmp_path) as server:
        yield server


def test_exactly_the_listed_files_arrive(work: Work, hub: HubServer, tmp_path: Path) -> None:
    client = Client(tmp_path / "home", hub)
    run = str(work.run.path.resolve())
    without = client.foretune("publish", run, "--to", REPO)
    assert without.returncode == 2
    assert "neither HF_TOKEN nor HUGGING_FACE_HUB_TOKEN is set" in without.stderr
    assert hub.requests == []
    sent = client.foretune("publish", run, "--to", REPO, HF_TOKEN=TOKEN)
    assert sent.returncode == 0, sent.stderr
    assert f"Published: {hub.endpoint}/{REPO}" in sent.stdout
    assert hub.created == {REPO: True}
    folder = work.run.path / "publish"
    assert hub.uploads[REPO] == {name: (folder / name).read_bytes() for name, _ in work.published.files}
    assert all(f"  {name}" in sent.stdout for name in hub.uploads[REPO])
    assert TOKEN not in sent.stdout + sent.stderr
    assert TOKEN.encode() not in b"".join(hub.uploads[REPO].values())


def test_the_hub_may_refuse(work: Work, hub: HubServer, tmp_path: Path) -> None:
    client = Client(tmp_path / "home", hub)
    program = (
        "import sys; from pathlib import Path; from foretune.core.errors import UserError\n"
        "from foretune.hub.uploading import upload\n"
        "try:\n"
        "    print(upload(Path(sys.argv[1]), sys.argv[2], is_private=sys.argv[3] == 'private'))\n"
        "except UserError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    folder = str(work.published.folder.resolve())
    hub.created["me/public"] = False
    public = client.python(program, folder, "me/public", "private", HF_TOKEN=TOKEN)
    assert (
        "Refused me/public exists and is public. Run: foretune publish RUN --to me/public --public" in public.stdout
    ), public.stderr
    refused = client.python(program, folder, "readonly/mine", "private", HF_TOKEN=TOKEN)
    assert "readonly/mine could not be uploaded to the Hub" in refused.stdout, refused.stderr
    assert "Set HF_TOKEN to a token of its owner that may write" in refused.stdout
    assert hub.uploads == {}
    allowed = client.python(program, folder, "me/public", "public", HF_TOKEN=TOKEN)
    assert f"{hub.endpoint}/me/public" in allowed.stdout, allowed.stderr
    assert set(hub.uploads["me/public"]) == {name for name, _ in work.published.files}


@pytest.mark.usefixtures("processes_begin_at_once")
def test_a_whole_model_is_published_without_its_origin(work: Work) -> None:
    ft.tiny("ddpm", "tiny-ddpm")
    experiment = {
        "model": str(work.folder / "tiny-ddpm"),
        "method": {"kind": "full"},
        "data": {"kind": "shapes", "num_samples": 4, "resolution": 32, "held_out": 0.0},
        "train": {"steps": 1, "batch_size": 1, "precision": "fp32"},
        "parallel": {"device": "cpu"},
    }
    published = ft.publish(ft.train(experiment), "me/ddpm", dry_run=True)
    names = {name for name, _ in published.files}
    assert {"README.md", "model_index.json", "unet/config.json"} < names
    assert not any(name.startswith("samples/") for name in names)
    data = metadata(published.card)
    assert data["pipeline_tag"] == "unconditional-image-generation"
    assert data["tags"] == ["foretune", "diffusers", "full-fine-tuning"]
    for name in names:
        assert str(work.folder).encode() not in (published.folder / name).read_bytes(), name
