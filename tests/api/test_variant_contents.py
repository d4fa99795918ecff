"""A comparison of variants goes on only while its model and adapters are those that were measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretune as ft
from foretune.core.errors import UserError
from foretune.measure import inference_variants

TinyPipeline = Callable[..., Path]


@pytest.mark.parametrize("changed", ["model/unet/config.json", "adapter/a.safetensors"])
def test_a_model_or_adapter_that_has_changed(
    changed: str, tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer: dict[str, Any] = {"times_s": [0.1] * 9, "peak_device_bytes": 1, "peak_host_bytes": 1}
    monkeypatch.setattr(inference_variants, "ask_fresh_process", lambda *_: answer)
    model = shutil.copytree(tiny_pipeline("ddpm"), tmp_path / "model")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "a.safetensors").write_bytes(b"weights")
    variants: dict[str, dict[str, Any]] = {"plain": {}, "lora": {"adapter": str(tmp_path / "adapter")}}

    def compare() -> None:
        ft.compare_inference(str(model), variants, folder=tmp_path / "measured", repeat=1, images=0)

    compare()
    monkeypatch.setattr(inference_variants, "ask_fresh_process", lambda *_: pytest.fail("measured again"))
    compare()
    with (tmp_path / changed).open("a") as file:
        file.write(" ")
    with pytest.raises(UserError, match="was measured before the model or its adapter changed"):
        compare()
