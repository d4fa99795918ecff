"""What a plan of memory assumes about the step, the allocator and the device."""

from foretune.catalog.devices import UNKNOWN, Device
from foretune.choices.experiment import Experiment
from foretune.core.values.plan import Transfers
from foretune.planner.sizing import StepSize


def plan_assumptions(
    experiment: Experiment, size: StepSize, device: Device, transfers: Transfers | None, *, expandable_segments: bool
) -> tuple[str, ...]:
    """Returns the assumptions in words."""
    frames = f" x {size.num_frames} frames" if size.num_frames > 1 else ""
    words = [f"the largest step has {size.batch_size} x {size.width_px} x {size.height_px} px{frames}"]
    if size.num_text_tokens:
        words.append(f"captions are padded to {size.num_text_tokens} tokens")
    segments = "expandable" if expandable_segments else "plain"
    words.append(f"the allocator has {segments} segments and nothing else uses the device")
    if device.arch == UNKNOWN:
        words.append(f"{device.name}: driver and context take as much memory as on other {device.kind.upper()} cards")
    if transfers is not None and transfers.is_link_assumed:
        words.append(f"host and device are connected by {transfers.link}")
    if experiment.quantize.text_encoders != "none":
        words.append("all weights of a text encoder except its token embeddings are in linear layers")
    return tuple(words)
