"""Every kind of adapter, exported and loaded again by others; merged into the base; trained on a quantised one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from foretune.core.errors import Refused
from foretune.data.buckets import Bucket
from foretune.models.adapters import load_adapter
from foretune.models.locating import open_family
from foretune.training.exporting import ExportRequest, export
from foretune.training.sampling import Pixels, SampleRequest, sample
from foretune.training.train import Trained
from tests.step.methods.kinds import KINDS
from tests.training.short_runs import METHODS, PROMPT, short_run

TinyPipeline = Callable[..., Path]

LOADERS = {"lora": "pipe.load_lora_weights(", "peft": "peft.PeftModel.from_pretrained(pipe."}


def trained_run(folder: Path, work: Path, method: str | dict[str, Any], **sections: Any) -> Trained:
    """Weights that moved well beyond rounding."""
    kind = KINDS[method] if isinstance(method, str) else method
    train = {"steps": 2, **sections.pop("train", {})}
    run = short_run(folder, work, kind, optimizer={"lr": 2e-2}, validate={"num_held_out": 0}, train=train, **sections)
    assert run.record.outcome.status == "finished"
    return run


def image(folder: Path, adapter: Path | None = None) -> Pixels:
    family = open_family(folder)
    pipeline = family.load_pipeline(folder, torch.float32)
    if adapter is not None:
        load_adapter(family, pipeline, adapter)
    request = SampleRequest(prompts=(PROMPT,), seed=0, num_inference_steps=2, size=Bucket(32, 32), num_text_tokens=16)
    return sample(family, pipeline, request)[0]


@pytest.mark.takes_turns
@pytest.mark.usefixtures("processes_begin_at_once")
@pytest.mark.parametrize(("family", "kind"), [("flux", "dora"), ("sd3", "lokr"), ("ddpm", "oft")])
def test_a_clean_process_gets_the_trained_model_back(
    family: str, kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline, report_figure: Callable[[str], None]
) -> None:
    trained = trained_run(tiny_pipeline(family), tmp_path, kind)
    exported = export(trained.run, tmp_path / "export")
    proof = exported.proof
    assert proof.holds
    assert proof.num_tensors == trained.num_trained_tensors
    assert exported.note is None
    assert LOADERS["lora" if kind == "dora" else "peft"] in exported.how_to_load
    share = f"{proof.num_consumed} of {proof.num_tensors} tensors"
    report_figure(f"{family} {kind}: {share} arrived, images differ by {proof.max_pixel_difference:g}")


@pytest.mark.takes_turns
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize(
    ("family", "kind", "dtype"),
    [
        ("flux", "rslora", torch.float32),
        ("flux", "loha", torch.float32),
        ("flux", "lokr whole", torch.bfloat16),
        ("flux", "oft", torch.bfloat16),
        ("sd3", "dora", torch.bfloat16),
        ("ddpm", "dora", torch.float32),
    ],
)
def test_others_get_the_trained_model_back(
    family: str, kind: str, dtype: torch.dtype, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    trained = trained_run(tiny_pipeline(family), tmp_path, kind, train={"steps": 1})
    assert export(trained.run, tmp_path / "export", ExportRequest(dtype=dtype)).proof.holds
    (file,) = (tmp_path / "export").glob("*.safetensors")
    assert {tensor.dtype for tensor in load_file(file).values()} == {dtype}


@pytest.mark.usefixtures("proof_in_this_process")
def test_adapted_convolutions_are_exported_too(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("ddpm"), tmp_path, {**KINDS["lokr"], "targets": ["conv1", "to_q"]})
    assert export(trained.run, tmp_path / "export").proof.holds
    assert export(trained.run, tmp_path / "merged", ExportRequest(merge=True)).proof.holds


@pytest.mark.takes_turns
@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize(
    ("family", "kind"), [("flux", "lora"), ("flux", "oft"), ("sd3", "dora"), ("sd3", "loha"), ("ddpm", "lokr")]
)
def test_a_merged_adapter_is_a_whole_pipeline(
    family: str, kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline(family)
    trained = trained_run(folder, tmp_path, kind)
    assert export(trained.run, tmp_path / "adapter").proof.holds
    exported = export(trained.run, tmp_path / "merged", ExportRequest(merge=True))
    assert exported.proof.holds
    assert exported.how_to_load.endswith(f'from_pretrained("{tmp_path / "merged"}")')
    files = {path.relative_to(tmp_path / "merged").as_posix() for path in (tmp_path / "merged").rglob("*.*")}
    assert files == {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    beside, merged = image(folder, tmp_path / "adapter"), image(tmp_path / "merged")
    np.testing.assert_allclose(merged, beside, atol=1e-4)
    assert np.abs(image(folder) - beside).max() > 1e-3


@pytest.mark.usefixtures("proof_in_this_process")
@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_an_adapter_of_a_quantised_base_goes_with_the_base_on_disk(
    kind: str, tmp_path: Path, tiny_pipeline: TinyPipeline
) -> None:
    folder = tiny_pipeline("flux")
    sections: dict[str, Any] = {"train": {"precision": "bf16"}, "quantize": {"denoiser": "nf4"}}
    trained = trained_run(folder, tmp_path, kind, **sections)
    exported = export(trained.run, tmp_path / "adapter", ExportRequest(dtype=torch.float32))
    assert exported.proof.holds
    assert exported.note is not None
    assert "trained on a base in nf4" in exported.note
    merged = export(trained.run, tmp_path / "merged", ExportRequest(dtype=torch.float32, merge=True))
    assert merged.proof.holds
    np.testing.assert_allclose(image(tmp_path / "merged"), image(folder, tmp_path / "adapter"), atol=1e-4)
    weights = load_file(tmp_path / "merged" / "transformer" / "diffusion_pytorch_model.safetensors")
    base = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    changed = {name for name, tensor in weights.items() if not torch.equal(tensor, base[name])}
    assert changed == {
        name for name in base if name.endswith(("to_q.weight", "to_k.weight", "to_v.weight", "to_out.0.weight"))
    }


def test_there_is_nothing_to_merge_where_every_weight_was_trained(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    trained = trained_run(tiny_pipeline("ddpm"), tmp_path, METHODS["full"])
    with pytest.raises(Refused, match=r"trained every weight.* Run: foretune export .*, without --merge"):
        export(trained.run, tmp_path / "export", ExportRequest(merge=True))
    assert not (tmp_path / "export").exists()
