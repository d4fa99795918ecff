"""`foretune fetch` against a hub on this machine, with huggingface_hub's own client."""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import foretune as ft
from foretune import catalog
from foretune.api.fetch import DownloadTotal
from foretune.cli.main import app
from foretune.core.errors import Refused, UserError
from tests.hub.client import TOKEN, Client, write_repository
from tests.hub.hub_server import LICENCE, HubServer, commit_of, running_hub

REPO = "owner/model"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
NEEDED = {
    "model_index.json",
    "tokenizer/merges.txt",
    "transformer/config.json",
    WEIGHTS,
    "vae/diffusion_pytorch_model.safetensors",
}
NOT_NEEDED = dict.fromkeys(
    (
        "README.md",
        "flux1-dev.safetensors",
        "run.py",
        "transformer/diffusion_pytorch_model.bin",
        "transformer/diffusion_pytorch_model.fp16.safetensors",
        "transformer/hook.py",
    ),
    b"not wanted",
)
MIB = 2**20
KEPT_PIECE_BYTES = 10 * MIB
"""huggingface_hub writes what it receives in pieces of this size."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    root = tmp_path / "hub"
    root.mkdir()
    with running_hub(root) as server:
        yield server


@pytest.fixture
def client(tmp_path: Path, hub: HubServer) -> Client:
    return Client(tmp_path / "home", hub)


def snapshot(client: Client, repo: str = REPO) -> Path:
    return client.home / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots" / commit_of(repo)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_fetched_model_is_found_without_a_network(
    client: Client, hub: HubServer, tiny_pipeline: Callable[..., Path]
) -> None:
    pipeline = tiny_pipeline("flux")
    repository = hub.root / REPO
    shutil.copytree(pipeline, repository)
    for name, data in NOT_NEEDED.items():
        (repository / name).write_bytes(data)
    fetched = client.foretune("fetch", REPO, HF_TOKEN=TOKEN)
    assert fetched.returncode == 0, fetched.stderr
    wanted = files_in(pipeline)
    size_bytes = sum((pipeline / name).stat().st_size for name in wanted)
    before, after = fetched.stderr, fetched.stdout
    assert f"Repository  {REPO} at {commit_of(REPO)}" in before
    assert f"Licence     {LICENCE}" in before
    assert "Token       HF_TOKEN is set" in before
    assert f"Size        {size_bytes / 1e6:.3g} MB in {len(wanted)} files, of which " in before  # the index
    assert f"Goes to     {client.home / 'hub'}" in before
    assert f"Verified {len(wanted)} of {len(wanted)} files by hash: {snapshot(client)}" in after
    assert TOKEN not in before + after
    assert hub.files_asked_for(REPO) == wanted
    assert files_in(snapshot(client)) == wanted
    # The same commit, found by the name alone, by the code that training uses.
    program = (
        "from foretune.choices.model import resolve_model; from foretune.models.locating import locate, open_family\n"
        f"folder, revision = locate(resolve_model({REPO!r})); print(folder, revision, open_family(folder).name)"
    )
    num_requests = len(hub.requests)
    found = client.python(program, HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    assert found.stdout.split() == [str(snapshot(client)), commit_of(REPO), "flux"], found.stderr
    assert len(hub.requests) == num_requests


def test_only_the_files_of_training_are_asked_for_and_nothing_twice(client: Client, hub: HubServer) -> None:
    same = b"a vocabulary that two tokenizers share"
    write_repository(hub.root, REPO, {**NOT_NEEDED, "tokenizer/vocab.json": same, "vae/config.json": same})
    first = client.foretune("fetch", REPO)
    assert first.returncode == 0, first.stderr
    assert hub.files_asked_for(REPO) <= NEEDED | {"tokenizer/vocab.json", "vae/config.json"}
    assert files_in(snapshot(client)) == NEEDED | {"tokenizer/vocab.json", "vae/config.json"}
    assert hub.bytes_sent["tokenizer/vocab.json"] + hub.bytes_sent["vae/config.json"] == len(same)
    sent = dict(hub.bytes_sent)
    second = client.foretune("fetch", REPO)
    assert second.returncode == 0, second.stderr
    assert "are in the cache" in second.stderr
    assert "Verified 7 of 7 files" in second.stdout
    assert dict(hub.bytes_sent) == sent


def test_an_interrupted_download_is_continued(client: Client, hub: HubServer) -> None:
    weights = os.urandom(25 * MIB)
    write_repository(hub.root, REPO, {WEIGHTS: weights})
    hub.breaks_off_after[WEIGHTS] = 21 * MIB
    broken = client.foretune("fetch", REPO)
    assert broken.returncode == 2
    assert "run the command again to continue" in broken.stderr
    assert not (snapshot(client) / WEIGHTS).exists()
    assert hub.bytes_sent[WEIGHTS] == 21 * MIB
    del hub.breaks_off_after[WEIGHTS]
    again = client.foretune("fetch", REPO)
    assert again.returncode == 0, again.stderr
    assert (snapshot(client) / WEIGHTS).read_bytes() == weights
    # Of the first 21 MiB, two whole pieces had been written.
    assert hub.bytes_sent[WEIGHTS] == 21 * MIB + len(weights) - 2 * KEPT_PIECE_BYTES
    assert not list(client.home.rglob("*.incomplete"))


def test_a_damaged_file_is_named_and_downloaded_again(client: Client, hub: HubServer) -> None:
    folder = write_repository(hub.root, REPO, {})
    hub.damages[WEIGHTS] = 1
    fetched = client.foretune("fetch", REPO)
    assert fetched.returncode == 0, fetched.stderr
    assert f"{WEIGHTS} is damaged" in fetched.stderr
    assert (snapshot(client) / WEIGHTS).read_bytes() == (folder / WEIGHTS).read_bytes()
    # Damaged on the disk, later: large and small files alike.
    for name in (WEIGHTS, "tokenizer/merges.txt"):
        stored = (snapshot(client) / name).resolve()
        stored.write_bytes(b"?" + stored.read_bytes()[1:])
        again = client.foretune("fetch", REPO)
        assert again.returncode == 0, again.stderr
        assert f"{name} is damaged" in again.stderr
        assert stored.read_bytes() == (folder / name).read_bytes()
    # Without a network it is found as well, and cannot be had again.
    (snapshot(client) / "tokenizer/merges.txt").resolve().write_bytes(b"?")
    offline = client.foretune("fetch", REPO, HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert "tokenizer/merges.txt is damaged" in offline.stderr


def test_a_file_that_is_damaged_twice_is_an_error_and_is_not_kept(client: Client, hub: HubServer) -> None:
    write_repository(hub.root, REPO, {})
    hub.damages[WEIGHTS] = 2
    fetched = client.foretune("fetch", REPO)
    assert fetched.returncode == 1
    assert f"Error: {WEIGHTS} of {REPO} was damaged twice" in fetched.stderr
    assert files_in(snapshot(client)) == NEEDED - {WEIGHTS}


@pytest.mark.parametrize(("variables", "status"), [({}, 401), ({"HF_TOKEN": TOKEN}, 403)], ids=["none", "refused"])
def test_a_gated_model_says_what_to_accept_and_set(
    client: Client, hub: HubServer, variables: dict[str, str], status: int
) -> None:
    write_repository(hub.root, "gated/model", {})
    refused = client.foretune("fetch", "gated/model", **variables)
    assert refused.returncode == 2
    assert f"{status} Client Error" in refused.stderr
    assert f"accept its licence on {hub.endpoint}/gated/model and" in refused.stderr
    assert "set HF_TOKEN" in refused.stderr
    assert ("the token in HF_TOKEN" in refused.stderr) == bool(variables)
    assert TOKEN not in refused.stderr + refused.stdout
    assert "Traceback" not in refused.stderr


def test_a_full_disk_is_predicted_before_any_weights_are_asked_for(client: Client, hub: HubServer) -> None:
    write_repository(hub.root, REPO, {})
    program = (
        "import sys, foretune as ft\n"
        "free = int(sys.argv[1])\n"
        "try:\n"
        f"    print(ft.fetch({REPO!r}, free_bytes=lambda folder: free))\n"
        "except ft.UserError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    needed_bytes = sum((hub.root / REPO / name).stat().st_size for name in NEEDED - {"model_index.json"})
    reserve_bytes = 10**9
    refused = client.python(program, str(reserve_bytes + needed_bytes - 1))
    assert refused.stdout.startswith(f"Refused {REPO} needs {needed_bytes / 1e3:.3g} kB more in"), refused.stderr
    assert "set HF_HOME to a folder on a larger disk" in refused.stdout
    assert hub.files_asked_for(REPO) == {"model_index.json"}
    enough = client.python(program, str(reserve_bytes + needed_bytes))
    assert "Verified 5 of 5 files" in enough.stdout, enough.stderr
    # What is here already needs no room.
    nothing_missing = client.python(program, "0")
    assert "Verified 5 of 5 files" in nothing_missing.stdout, nothing_missing.stderr


def test_what_cannot_be_trained_is_refused_before_its_weights(client: Client, hub: HubServer) -> None:
    folder = write_repository(hub.root, REPO, {})
    index = json.loads((folder / "model_index.json").read_text())
    for change, reason in (
        ({"_class_name": "WonderPipeline"}, "is a WonderPipeline, which cannot be trained yet"),
        ({"transformer_2": ["diffusers", "FluxTransformer2DModel"]}, "has two denoisers"),
    ):
        (folder / "model_index.json").write_text(json.dumps({**index, **change}))
        shutil.rmtree(client.home, ignore_errors=True)
        refused = client.foretune("fetch", REPO)
        assert refused.returncode == 2
        assert reason in refused.stderr
    (folder / "model_index.json").unlink()
    shutil.rmtree(client.home)
    refused = client.foretune("fetch", REPO)
    assert "has no model_index.json, so it is not in the diffusers layout" in refused.stderr
    assert hub.files_asked_for(REPO) == {"model_index.json"}


def test_a_dry_run_asks_nobody(client: Client, hub: HubServer, tmp_path: Path) -> None:
    answer = client.foretune("fetch", "flux.1-dev", "--dry-run", HUGGING_FACE_HUB_TOKEN=TOKEN)
    assert answer.returncode == 0, answer.stderr
    assert "black-forest-labs/FLUX.1-dev" in answer.stdout
    assert "Token       HUGGING_FACE_HUB_TOKEN is set" in answer.stdout
    assert f"Goes to     {client.home / 'hub'}" in answer.stdout
    assert TOKEN not in answer.stdout + answer.stderr
    by_file = tmp_path / "experiment.yaml"
    by_file.write_text("model: flux.1-dev\ndata: {kind: folder, path: images}\ntrain: {steps: 10}\n")
    other = client.foretune("fetch", str(by_file), "model=sdxl", "--dry-run")
    assert "stabilityai/stable-diffusion-xl-base-1.0" in other.stdout, other.stderr
    unknown = client.foretune("fetch", "owner/not-catalogued", "--dry-run")
    assert unknown.returncode == 2
    assert "owner/not-catalogued is not in the catalogue, and a dry run asks nobody else" in unknown.stderr
    assert hub.requests == []
    assert not client.home.exists()


@pytest.mark.parametrize("name", catalog.denoisers())
def test_every_catalogued_model_has_a_dry_run(name: str) -> None:
    row = catalog.denoisers()[name]
    system = row.system
    beside = [] if system is None else [system.vae, *system.text_encoders, system.image_encoder]
    rows = [row, *(catalog.component(other) for other in beside if other is not None)]
    num_numbers = sum(each.num_params + each.num_persistent_buffer_elements for each in rows)
    plan = ft.fetch(name, dry_run=True, free_bytes=lambda folder: 10**15).plan
    assert plan is not None
    assert (plan.repo, plan.revision, plan.is_trainable) == (row.hub_repo, None, row.is_trainable)
    assert (plan.low_bytes, plan.high_bytes) == (2 * num_numbers, 4 * num_numbers)
    is_all_known = system is not None and not system.not_in_catalogue
    assert plan.fits == ("yes" if is_all_known else "perhaps")
    assert ft.fetch(name, dry_run=True, free_bytes=lambda folder: 10**9).plan.fits == "no"  # type: ignore[union-attr]
    answer = str(ft.fetch(name, dry_run=True))
    assert f"{plan.low_bytes / 1e9:.3g} GB" in answer or f"{plan.low_bytes / 1e6:.3g} MB" in answer
    assert "estimate" in answer


def test_a_local_folder_needs_no_download() -> None:
    fetched = ft.fetch("foretune-shapes")
    assert fetched.plan is None
    assert "there is nothing to download" in str(fetched)


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'flux\.1-dev'"):
        ft.fetch("flux.1-deev", dry_run=True)
    with pytest.raises(Refused, match="not in the catalogue"):
        ft.fetch("owner/other", dry_run=True)


DATASET = "bghira/pseudo-camera-10k"


def test_a_data_set_is_fetched_and_read_by_the_printed_settings(client: Client, hub: HubServer) -> None:
    folder = hub.root / "datasets" / DATASET
    folder.mkdir(parents=True)
    picture = Image.new("RGB", (32, 32), "red")
    for name in ("a_red_boat.png", "another boat.png"):
        picture.save(folder / name)
    for name in ("README.md", "loader.py", "cache.pkl", "images.zip"):
        (folder / name).write_bytes(b"not wanted")
    fetched = client.foretune("fetch", "pseudo-camera-10k")
    assert fetched.returncode == 0, fetched.stderr
    assert f"Repository  {DATASET} at {commit_of('datasets/' + DATASET)}" in fetched.stderr
    assert "Data set    pseudo-camera-10k" in fetched.stderr
    assert "Verified 2 of 2 files by hash" in fetched.stdout
    settings = json.loads(fetched.stdout.partition("data: ")[2])
    assert files_in(Path(settings["path"])) - {"README.md"} == {"a_red_boat.png", "another boat.png"}
    # Files in the Hub's cache are links to the cache's blobs.
    program = (
        "import json, sys; from foretune.choices.data import FolderData; from foretune.data.buckets import Bucket\n"
        "from foretune.data.sources.folder import open_folder\n"
        "source = open_folder(FolderData(**json.loads(sys.argv[1])), Bucket(32, 32))\n"
        "print(json.dumps([source.info(number).caption for number in range(len(source))]))"
    )
    read = client.python(program, json.dumps(settings))
    assert json.loads(read.stdout) == ["a red boat", "another boat"], read.stderr


def test_the_benchmark_has_a_dry_run(client: Client, hub: HubServer) -> None:
    answer = client.foretune("fetch", "--benchmark", "--dry-run")
    assert answer.returncode == 0, answer.stderr
    for repo in ("FLUX.1-dev", "stable-diffusion-xl-base-1.0", "mochi-1", "HunyuanVideo", "Wan2.1-I2V", DATASET):
        assert repo in answer.stdout
    assert "Total       6 repositories: 158 GB to 316 GB" in answer.stdout
    assert answer.stdout.count("Disk ") == 1
    assert hub.requests == []


def test_the_benchmark_is_compared_with_the_disk_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def planned(free_gb: int) -> tuple[list[ft.Fetched], str]:
        downloads = list(ft.fetch_benchmark(dry_run=True, free_bytes=lambda folder: free_gb * 10**9))
        return downloads, str(DownloadTotal(downloads))

    downloads, total = planned(100)
    plans = [fetched.plan for fetched in downloads if fetched.plan is not None]
    low_bytes = sum(plan.low_bytes for plan in plans)
    assert all(plan.low_bytes < 10**11 for plan in plans), "each would fit by itself"
    assert f"Total       6 repositories: {low_bytes / 1e9:.0f} GB to" in total
    assert "not known of pseudo-camera-10k" in total
    assert f"Disk        100 GB free: not enough for the {low_bytes / 1e9:.0f} GB that are missing" in total
    assert not [fetched for fetched in downloads if "enough" in str(fetched)]
    assert "enough for the parts of known size in 16 bits" in planned(low_bytes // 10**9 + 2)[1]
    with pytest.raises(Refused, match="These 6 downloads need 158 GB more"):
        next(ft.fetch_benchmark(free_bytes=lambda folder: 10**11))
    # What is in the cache needs no room; what is there of one model is no room for another.
    for gigabytes in (20, 60):
        write_cached(tmp_path, "black-forest-labs/FLUX.1-dev", gigabytes)
        total = planned(100)[1]
        assert f"In cache    {gigabytes} GB" in total
        missing_bytes = low_bytes - min(gigabytes * 10**9, plans[0].low_bytes)
        assert f"the {missing_bytes / 1e9:.0f} GB that are missing" in total


def write_cached(cache: Path, repo: str, gigabytes: int) -> None:
    """A model in huggingface_hub's cache, with files that are long and empty; one of them is not read in training."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit_of(repo)
    (snapshot / "transformer").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit_of(repo))
    (snapshot / "model_index.json").write_text('{"transformer": ["diffusers", "FluxTransformer2DModel"]}')
    for name in ("transformer/diffusion_pytorch_model.safetensors", "flux1-dev.safetensors"):
        (snapshot / name).touch()
        os.truncate(snapshot / name, gigabytes * 10**9)


def test_a_script_is_never_asked_for_a_token(client: Client, hub: HubServer) -> None:
    refused = client.foretune("fetch", "--benchmark")
    assert refused.returncode == 2
    assert "Token of the Hugging Face Hub" not in refused.stderr


def test_a_benchmark_has_no_target() -> None:
    for arguments in ((), ("sdxl", "--benchmark")):
        refused = CliRunner().invoke(app, ["fetch", *arguments])
        assert isinstance(refused.exception, UserError)
        assert "or give --benchmark alone" in str(refused.exception)


def test_the_paintings_of_one_artist_are_read_by_the_printed_settings(client: Client, hub: HubServer) -> None:
    repo = "huggan/wikiart"
    folder = hub.root / "datasets" / repo / "data"
    folder.mkdir(parents=True)
    datasets = pytest.importorskip("datasets")
    names = ["Unknown Artist", "claude-monet", "john-singer-sargent"]
    for number, artists in enumerate(([0, 2, 1], [2, 2])):
        stream = io.BytesIO()
        Image.new("RGB", (32, 32), "red").save(stream, "PNG")
        cells = {"image": [{"bytes": stream.getvalue(), "path": None}] * len(artists), "artist": artists}
        features = datasets.Features(image=datasets.Image(), artist=datasets.ClassLabel(names=names))
        rows = datasets.Dataset.from_dict(cells, features=features)
        rows.to_parquet(folder / f"train-0000{number}-of-00002.parquet")
    fetched = client.foretune("fetch", "wikiart-sargent")
    assert fetched.returncode == 0, fetched.stderr
    settings = json.loads(fetched.stdout.partition("data: ")[2])
    program = (
        "import json, sys; from foretune.choices.data import HuggingFaceData\n"
        "from foretune.data.buckets import Bucket\n"
        "from foretune.data.sources.huggingface import open_huggingface\n"
        "source = open_huggingface(HuggingFaceData(**json.loads(sys.argv[1])), Bucket(32, 32))\n"
        "print(json.dumps([source.info(number).caption for number in range(len(source))]))"
    )
    read = client.python(program, json.dumps({**settings, "cache_dir": str(client.home / "cache")}))
    assert json.loads(read.stdout) == ["a painting by John Singer Sargent"] * 3, read.stderr
