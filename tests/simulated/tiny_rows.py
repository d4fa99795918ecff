"""A tiny pipeline as rows of the catalogue, so that its inference is planned with all parts."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from foretune import catalog
from foretune.catalog import ModelComponent
from foretune.choices.model import ModelReference, read_json
from foretune.core.values.step_trace import StepTrace
from foretune.models.locating import open_family
from foretune.planner.traces import LiveTracer, Traces
from foretune.trace import forward
from foretune.trace.geometry import geometry_of
from foretune.trace.live import LiveTraces
from foretune.trace.shipped import Geometry
from foretune.trace.tracing import StepSizes

_NO_ARGUMENTS = ("architectures", "dtype", "torch_dtype", "transformers_version", "model_type")


class TinyRows:
    """Records every pass of a pipeline on fake tensors, as shipped traces were."""

    def __init__(self, folder: Path, like: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.family = open_family(folder)
        usual = catalog.denoiser(like)
        assert usual.system is not None
        encoders = [part for part in self.family.text_parts if part.startswith("text_encoder")]
        texts = dict(zip(encoders, usual.system.text_encoders, strict=True))
        rows = {name: self._row(folder / part, catalog.component(name)) for part, name in texts.items()}
        assert usual.system.vae is not None
        rows[usual.system.vae] = self._row(folder / "vae", catalog.component(usual.system.vae))
        denoiser = self._row(folder / self.family.denoiser_part, usual)
        # Its own name: a step of the real model ships.
        self._denoiser = denoiser.model_copy(update={"name": f"tiny-{like}"})
        rows[self._denoiser.name] = self._denoiser
        known = catalog.component
        self._recorded: dict[str, StepTrace] = {}
        monkeypatch.setattr(catalog, "component", lambda name: rows.get(name) or known(name))
        monkeypatch.setattr(forward, "family_from_catalogue", lambda _: self.family)
        monkeypatch.setattr(Traces, "forward", lambda _, form: self._forward(form))

    @staticmethod
    def _row(folder: Path, like: ModelComponent) -> ModelComponent:
        config = {key: value for key, value in read_json(folder / "config.json").items() if key not in _NO_ARGUMENTS}
        config = {key: value for key, value in config.items() if not key.startswith("_")}
        model_class: Any = getattr(import_module(like.library), like.class_name)
        is_transformer = like.library == "transformers"
        made = model_class(model_class.config_class(**config)) if is_transformer else model_class(**config)
        num_params = sum(parameter.numel() for parameter in made.parameters())
        changes: dict[str, Any] = {"config": config, "num_params": num_params}
        if like.role == "vae":
            blocks = len(config["block_out_channels"])
            changes |= {"spatial_compression": 2 ** (blocks - 1), "latent_channels": config["latent_channels"]}
        return like.model_copy(update=changes)

    def _forward(self, form: Any) -> StepTrace:
        if form.slug() not in self._recorded:
            self._recorded[form.slug()] = forward.make_forward_trace(form)
        return self._recorded[form.slug()]

    def tracer(self, model: ModelReference) -> LiveTracer:
        live = LiveTraces(self.family)

        def trace(form: Any, size: Any) -> StepTrace:
            sizes = StepSizes(
                batch_size=size.batch_size,
                height_px=size.height_px,
                width_px=size.width_px,
                num_text_tokens=size.num_text_tokens,
                num_frames=size.num_frames,
            )
            return live(form, sizes, size.rank)

        return trace

    def described(self, model: ModelReference) -> tuple[ModelComponent, Geometry]:
        return self._denoiser, geometry_of(self.family)
