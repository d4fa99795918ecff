"""Adapters by their Hub id, downloaded from a hub on this machine with huggingface_hub's own client."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretune.choices.adapter import ADAPTER_FILE, PEFT_FILE, PEFT_SETTINGS
from foretune.models.locating import open_family
from foretune.record.run_directory import RunDirectory
from tests.hub.client import Client
from tests.hub.hub_server import HubServer, commit_of, running_hub
from tests.models.test_adapters import ALPHA, RANK, TARGETS, written
from tests.training.short_runs import losses_of

TinyPipeline = Callable[..., Path]
REPO = "me/my-lora"

LOCATE = """
import json, sys
import foretune as ft
from foretune.hub.adapters import locate_adapter
answers = {}
for asked in sys.argv[1:]:
    try:
        found = locate_adapter(asked)
        answers[asked] = [str(found.path), found.revision, found.label]
    except ft.UserError as error:
        answers[asked] = f"{type(error).__name__}: {error}"
assert "torch" not in sys.modules
print(json.dumps(answers))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    root = tmp_path / "hub"
    root.mkdir()
    with running_hub(root) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path, hub: HubServer) -> Client:
    return Client(tmp_path / "home", hub)


def repository(hub: HubServer, repo: str, *names: str) -> None:
    for name in names:
        path = hub.root / repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def located(client: Client, *asked: str, **variables: str) -> dict[str, Any]:
    answer = client.python(LOCATE, *asked, **variables)
    assert answer.returncode == 0, answer.stderr
    return dict(json.loads(answer.stdout))


def snapshot(client: Client, repo: str) -> Path:
    return client.home / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots" / commit_of(repo)


def test_the_weights_alone_are_downloaded_and_the_commit_is_known(client: Client, hub: HubServer) -> None:
    others = ("README.md", "optimizer.bin", "run.py", "image.png")
    repository(hub, REPO, ADAPTER_FILE, "checkpoint-1/pytorch_lora_weights.safetensors", *others)
    repository(hub, "me/peft", PEFT_FILE, PEFT_SETTINGS, "README.md", "training_args.bin")
    repository(hub, "me/other-name", "sargent.safetensors", "sargent.pt")
    repository(hub, "me/several", "a.safetensors", "deep/b.safetensors")
    asked = (REPO, "me/peft", "me/other-name", "me/several:deep/b.safetensors")
    found = located(client, *asked)
    ends = {REPO: "", "me/peft": "", "me/other-name": "sargent.safetensors", "me/several": "deep/b.safetensors"}
    for name, (path, revision, label) in found.items():
        repo = name.partition(":")[0]
        assert Path(path) == snapshot(client, repo) / ends[repo]
        assert revision == commit_of(repo)
        assert label == f"{name} ({revision[:10]})"
    assert hub.files_asked_for(REPO) == {ADAPTER_FILE, "README.md"}
    assert hub.files_asked_for("me/peft") == {PEFT_FILE, PEFT_SETTINGS, "README.md"}
    assert hub.files_asked_for("me/other-name") == {"sargent.safetensors"}
    assert hub.files_asked_for("me/several") == {"deep/b.safetensors"}
    # Later, without a network, from the cache.
    assert located(client, *asked, HF_HUB_OFFLINE="1") == found


def test_each_failure_says_what_to_do(client: Client, hub: HubServer) -> None:
    repository(hub, "me/pickles", "pytorch_lora_weights.bin", "README.md")
    repository(hub, "me/nothing", "README.md")
    repository(hub, "me/several", "a.safetensors", "b.safetensors")
    repository(hub, "me/model", "model_index.json", "unet/diffusion_pytorch_model.safetensors")
    repository(hub, "gated/lora", ADAPTER_FILE)
    found = located(
        client,
        *("me/pickles", "me/nothing", "me/several", "me/several:c.safetensors", "me/model", "me/unknown", "gated/lora"),
    )
    assert found["me/pickles"] == (
        "Refused: me/pickles holds no .safetensors file, so there is no adapter to read. Its pytorch_lora_weights.bin "
        "is a pickle, which can run code and is not read."
    )
    assert found["me/nothing"].endswith("holds no .safetensors file, so there is no adapter to read.")
    assert found["me/several"] == (
        "UserError: me/several holds 2 .safetensors files: a.safetensors, b.safetensors. Name one of them: "
        "me/several:a.safetensors"
    )
    assert "holds no adapter c.safetensors. It holds: a.safetensors, b.safetensors" in found["me/several:c.safetensors"]
    assert found["me/model"] == "Refused: me/model is a whole model, not an adapter: it has a model_index.json."
    assert "me/unknown could not be downloaded from the Hub" in found["me/unknown"]
    assert "Check the adapter's name" in found["me/unknown"]
    assert "accept its licence on" in found["gated/lora"]
    asked_for = {path.rpartition("/")[2] for method, path in hub.requests if method == "GET" and "/resolve/" in path}
    assert not [name for name in asked_for if name.endswith((".bin", ".safetensors"))]


def test_a_hub_that_cannot_be_reached(client: Client) -> None:
    answer = located(client, REPO, HF_ENDPOINT="http://127.0.0.1:9")[REPO]
    assert answer.startswith(f"HubRefused: {REPO} could not be downloaded from the Hub: ")
    assert "without a network, name a folder on this machine" in answer


def test_the_base_and_an_adapter_of_the_hub_in_one_picture(
    client: Client, hub: HubServer, tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    pipeline, folder = tiny_pipeline("flux"), hub.root / REPO
    _, path = written(open_family(pipeline), pipeline, folder)
    shutil.move(path, folder / "sargent.safetensors")
    picture = tmp_path / "samples.png"
    choices = [*("--prompt", "a red circle", "--adapter", REPO, "--steps", "1", "--size", "32", "--text-tokens", "16")]
    choices += ["--device", "cpu", "--output", str(picture)]
    sampled = client.foretune("sample", "--base", str(pipeline), *choices)
    assert sampled.returncode == 0, sampled.stderr
    assert f"base, adapter {REPO} ({commit_of(REPO)[:10]})" in sampled.stdout
    assert picture.is_file()
    # The same adapter beside a model of another family: refused before anything is sampled.
    foreign = client.foretune("sample", "--base", str(tiny_pipeline("ddpm")), *choices)
    assert foreign.returncode == 2
    assert "does not belong to this model" in foreign.stderr


def test_a_bench_of_inference_records_the_commit_of_its_adapter(
    client: Client, hub: HubServer, tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    pipeline = tiny_pipeline("ddpm")
    written(open_family(pipeline), pipeline, hub.root / REPO)
    program = (
        "import json, sys, foretune as ft\n"
        "model, benches = sys.argv[1:]\n"
        "few = {'steps': 1, 'repeat': 1, 'images': 0, 'benches': benches}\n"
        f"one = ft.bench_inference(model, adapter={REPO!r}, **few)\n"
        f"ways = ft.compare_inference(model, {{'plain': {{}}, 'lora': {{'adapter': {REPO!r}}}}}, **few)\n"
        "print(json.dumps([one.adapter, [each.variant.adapter for each in ways.measured]]))"
    )
    answer = client.python(program, str(pipeline), str(tmp_path / "benches"))
    assert answer.returncode == 0, answer.stderr
    label, adapters = json.loads(answer.stdout.splitlines()[-1])
    assert label == f"{REPO} ({commit_of(REPO)[:10]})"
    assert adapters == [None, str(snapshot(client, REPO))]


def test_a_run_starts_from_an_adapter_of_the_hub(
    client: Client, hub: HubServer, tiny_pipeline: TinyPipeline, tmp_path: Path
) -> None:
    pipeline = tiny_pipeline("ddpm")
    _, path = written(open_family(pipeline), pipeline, hub.root / REPO)
    experiment = {
        "model": str(pipeline),
        "method": {"kind": "lora", "rank": RANK, "alpha": ALPHA, "targets": TARGETS},
        "data": {"kind": "shapes", "num_samples": 4, "resolution": 32, "cache_dir": str(tmp_path / "cache")},
        "train": {"steps": 1, "batch_size": 1, "precision": "fp32"},
        "validate": {"num_held_out": 0},
        "parallel": {"device": "cpu"},
    }
    program = (
        "import json, sys, foretune as ft\n"
        "experiment, runs = json.loads(sys.argv[1]), sys.argv[2]\n"
        "for name in sys.argv[3:]:\n"
        "    print(ft.train(experiment, {'method.start_from': name}, runs=runs).path)"
    )
    answer = client.python(program, json.dumps(experiment), str(tmp_path / "runs"), REPO, str(path.parent))
    assert answer.returncode == 0, answer.stderr
    by_hub_id, by_folder = (RunDirectory.open(Path(line)) for line in answer.stdout.splitlines()[-2:])
    assert losses_of(by_hub_id) == losses_of(by_folder) != []
    # The repository's name stands in the run, and the content that was read: it may be another one later.
    assert f"start_from: {REPO}" in (by_hub_id.path / "experiment.yaml").read_text()
    facts = [{**run.read_experiment()[2], "experiment_hash": ""} for run in (by_hub_id, by_folder)]
    assert facts[0] == facts[1]
