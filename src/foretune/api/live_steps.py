"""Records steps on fake tensors for plans that no shipped trace answers."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from foretune.api.process_state import torch_kept
from foretune.api.start import import_libraries
from foretune.core.extras import require
from foretune.core.observer import Observer

if TYPE_CHECKING:
    from foretune.catalog import ModelComponent
    from foretune.choices.model import ModelReference
    from foretune.choices.step_form import StepForm
    from foretune.core.values import StepTrace
    from foretune.planner.sizing import StepSize
    from foretune.planner.traces import LiveTracer
    from foretune.trace.shipped import Geometry

Progress = Callable[[str], None]


def live_steps(observer: Observer, progress: Progress, *, needed: bool) -> "LiveSteps | None":
    """Where torch is installed, steps can be recorded; it is imported when the first one is."""
    if needed:
        require("train", "Recording a step")
    has_libraries = find_spec("torch") is not None and find_spec("diffusers") is not None
    return LiveSteps(observer, progress) if has_libraries else None


class LiveSteps:
    """Records steps, and reports it, because it takes seconds."""

    def __init__(self, observer: Observer, progress: Progress = lambda _: None) -> None:
        self._observer, self._progress = observer, progress

    def tracer(self, model: "ModelReference") -> "LiveTracer":
        def trace(form: "StepForm", size: "StepSize") -> "StepTrace":
            self._import()
            from foretune.planner.traces import NotTraced
            from foretune.trace.live import LiveTraces, default_cache_dir, family_of
            from foretune.trace.program import IrregularStep
            from foretune.trace.tracing import StepSizes

            def recording(slug: str, number: int, total: int) -> None:
                self._progress(f"recording {slug} on fake tensors, {number} of {total}")

            live = LiveTraces(family_of(model), default_cache_dir(), recording)
            sizes = StepSizes(
                batch_size=size.batch_size,
                height_px=size.height_px,
                width_px=size.width_px,
                num_text_tokens=size.num_text_tokens,
                num_frames=size.num_frames,
            )
            try:
                # The step that is recorded seeds its dropout.
                with torch_kept():
                    return live(form, sizes, size.rank)
            except IrregularStep as error:
                raise NotTraced(
                    f"This step ({form.slug()}) does not repeat itself as a plan needs it: {error}. "
                    "Leave one of its levers, or the quantisation, at its default"
                ) from error

        return trace

    def described(self, model: "ModelReference") -> "tuple[ModelComponent, Geometry]":
        self._import()
        from foretune.trace.live import described, family_of

        return described(family_of(model), model.asked)

    def _import(self) -> None:
        self._progress("importing torch")
        import_libraries(self._observer, "foretune.trace.live")
