"""Which published rows are asked, as what, and why the others are not. Nothing here knows a forecast."""

import re
from collections import Counter
from typing import Any

import pytest

from foretune import catalog
from foretune.backtests import DIALECTS, BacktestQuestion, LeftOut, RowSizes, baseline_bytes, is_exact, question
from foretune.catalog import Measurement
from foretune.choices.capabilities import objections
from foretune.choices.step_form import StepForm

ROWS = catalog.measurements()
EXAM = [row for row in ROWS.values() if is_exact(row)]
GIB = 2**30


def asked(row_id: str) -> BacktestQuestion:
    answer = question(ROWS[row_id])
    assert isinstance(answer, BacktestQuestion), answer
    return answer


def changed(row_id: str, **changes: Any) -> BacktestQuestion | LeftOut:
    return question(ROWS[row_id].model_copy(update=changes))


def reason(answer: BacktestQuestion | LeftOut) -> str:
    assert isinstance(answer, LeftOut), answer
    return answer.reason


def test_the_exam_has_as_many_rows_as_were_published() -> None:
    assert len(EXAM) == 169
    answers = [question(row) for row in EXAM]
    taken = Counter(answer.source for answer in answers if isinstance(answer, BacktestQuestion))
    assert taken == {"SimpleTuner": 84, "cogvideox-factory": 25, "finetrainers v0.0.1": 5}
    left_out = Counter(answer.source for answer in answers if isinstance(answer, LeftOut))
    assert left_out == {
        "SimpleTuner": 46,
        "fast-DiT": 3,
        "torchtitan": 3,
        "diffusers train_dreambooth_lora_hidream": 2,
        "diffusers flux_lora_quantization": 1,
    }


def test_why_rows_of_the_exam_are_left_out() -> None:
    answers = [question(row) for row in EXAM]
    kinds = Counter(re.split(r" \(|: |, ", answer.reason)[0] for answer in answers if isinstance(answer, LeftOut))
    assert kinds == {
        "a base quantised by SDNQ": 30,
        "LoKr with another factor for each kind of layer": 13,
        "a base quantised by quanto": 3,
        "8 devices": 3,
        "another program": 3,
        "a quantised base whose program was not read": 1,
        "the figure is the memory after the backward pass": 1,
        "the row does not say which peak it reports": 1,
    }


def test_what_the_rows_of_the_exam_ask() -> None:
    """Each backend, optimizer and lever by itself."""
    taken = [answer for row in EXAM if isinstance(answer := question(row), BacktestQuestion)]
    assert Counter(answer.base for answer in taken) == {
        "not quantised": 68,
        "float8-dynamic (torchao)": 30,
        "float8 (torchao)": 16,
    }
    experiments = [answer.experiment for answer in taken]
    assert Counter(e.method.kind for e in experiments) == {"lora": 105, "lokr": 6, "full": 3}
    assert Counter(e.optimizer.kind for e in experiments) == {"adamw": 85, "lion": 20, "adamw8bit": 9}
    assert sum(e.levers.optimizer_offload for e in experiments) == 9
    assert Counter((e.levers.checkpoint_segment, e.levers.checkpoint_stride) for e in experiments) == {
        (1, None): 87,
        (2, None): 11,
        (2, 4): 16,
    }


def test_rows_that_fitted_or_ran_out_of_memory() -> None:
    questions = [(row.fitted, question(row)) for row in ROWS.values() if row.task == "train" and row.fitted is not None]
    taken = Counter(fitted for fitted, answer in questions if isinstance(answer, BacktestQuestion))
    assert taken == {True: 180, False: 16}
    assert all(answer.device_bytes for _, answer in questions if isinstance(answer, BacktestQuestion))


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_every_row_is_asked_or_has_a_reason(row: Measurement) -> None:
    answer = question(row)
    assert (answer.row_id, answer.source) == (row.id, row.framework)
    if isinstance(answer, LeftOut):
        assert len(answer.reason) > 10
        return
    assert answer.model in catalog.denoisers()
    assert {*answer.resident, *answer.loaded_before} <= set(catalog.components())
    assert answer.sizes.batch_size == answer.experiment.train.batch_size == row.batch_size_per_gpu
    found = objections(answer.experiment, catalog.denoiser(answer.model).family or "", distilled=False)
    refused = [o.text for o in found if o.severity == "refused" and "cannot be trained yet" not in o.text]
    assert refused == []


def test_simpletuner_adapter() -> None:
    one = asked("GT0416")
    train, method = one.experiment.train, one.experiment.method
    assert one.model == "sd3.5-medium"
    assert one.sizes == RowSizes(batch_size=3, height_px=1024, width_px=1024, num_frames=1, num_text_tokens=154)
    assert method.kind == "lora"
    assert (method.rank, method.dropout) == (128, 0.1)
    assert method.targets == ("to_q", "to_k", "to_v", "to_out.0")
    assert (train.precision, train.weight_dtype, one.experiment.optimizer.compensation) == ("bf16", "bf16", "kahan")
    assert one.experiment.levers.gradient_checkpointing == 1.0
    assert (one.resident, one.loaded_before) == ((), ())
    assert one.published is not None
    assert one.published.peak == "allocated"
    assert one.published.num_bytes == one.published.most_bytes
    assert one.device_bytes == catalog.device("h100-sxm").memory_bytes


def test_simpletuner_full_fine_tuning() -> None:
    one = asked("GT0003")
    assert (one.model, one.experiment.method.kind) == ("sd3-medium", "full")
    assert (one.experiment.train.weight_dtype, one.experiment.optimizer.compensation) == ("bf16", "kahan")
    assert one.published is not None
    assert (one.published.peak, one.published.num_bytes) == ("allocated", round(20.26 * GIB))
    assert one.published.most_bytes == one.published.num_bytes
    assert one.device == "l4"
    assert baseline_bytes(one) == 10 * catalog.denoiser("sd3-medium").num_params


def test_cogvideox_factory() -> None:
    """Encoders are beside the denoiser until the first step; adapters are fp32."""
    one = asked("GT0104")
    assert one.sizes == RowSizes(batch_size=4, height_px=480, width_px=720, num_frames=49, num_text_tokens=226)
    assert one.loaded_before == ("vae-cogvideox", "t5-v1_1-xxl-encoder")
    assert one.resident == ()
    assert one.experiment.train.weight_dtype == "fp32"
    assert one.published is not None
    assert one.published.peak == "reserved"
    lora = catalog.denoiser("cogvideox-2b").lora_params_per_rank
    assert lora is not None
    base_bytes = 2 * catalog.denoiser("cogvideox-2b").num_params
    assert baseline_bytes(one) == base_bytes + 16 * 256 * lora.attn_qkvo


def test_full_fine_tuning_of_cogvideox_factory_has_fp32_weights_by_its_own_words() -> None:
    one = asked("GT0143")
    assert (one.experiment.train.precision, one.experiment.train.weight_dtype) == ("bf16", "fp32")
    assert (one.fitted, one.published) == (False, None)


def test_finetrainers_without_precomputation_keeps_its_encoders() -> None:
    cached, live = asked("GT0084"), asked("GT0083")
    assert cached.resident == ()
    assert live.resident == ("vae-hunyuanvideo", "llava-llama-3-8b-text", "clip-l-text")
    assert not live.experiment.levers.cache_latents
    assert not live.experiment.levers.cache_text
    assert (live.experiment.train.weight_dtype, live.experiment.optimizer.compensation) == ("bf16", "none")
    assert live.sizes == cached.sizes
    assert live.loaded_before == ()
    beside = sum(catalog.component(name).num_params for name in live.resident)
    assert baseline_bytes(live) - baseline_bytes(cached) == 2 * beside


def test_a_rank_that_is_not_said_matters_only_where_a_peak_was_published() -> None:
    assert asked("GT0158").assumptions == ("the rank is not stated: 16",)
    assert "rank" in reason(changed("GT0416", lora_rank=None))


@pytest.mark.parametrize(
    ("model", "words", "levers"),
    [
        ("SD3.5-medium", "full", (1.0, 1, None)),
        ("SD3.5-medium", "none", (0.0, 1, None)),
        ("SD3.5-medium", "partial interval2", (1.0, 2, None)),
        ("SD3.5-medium", "partial seg2-stride4", (1.0, 2, 4)),
        ("Lumina-Image-2.0", "partial seg2-stride4", (1.0, 2, 4)),
        ("PixArt-Sigma 900M", "partial interval3", (1.0, 3, None)),
        ("Chroma1", "partial interval2", (0.5, 1, None)),
        ("Qwen-Image", "partial interval2", (1.0, 1, None)),
        ("HiDream-I1-Full", "partial seg2-stride4", (1.0, 1, None)),
    ],
)
def test_an_interval_means_what_it_does_in_the_family(
    model: str, words: str, levers: tuple[float, int, int | None]
) -> None:
    """Segments, every n-th block alone, or nothing at all."""
    one = changed("GT0416", model=model, grad_ckpt=words)
    assert isinstance(one, BacktestQuestion)
    found = one.experiment.levers
    assert (found.gradient_checkpointing, found.checkpoint_segment, found.checkpoint_stride) == levers


@pytest.mark.parametrize(("model", "words"), [("FLUX.1-dev", "partial interval2"), ("Chroma1", "partial seg2-stride4")])
def test_an_interval_that_was_not_read_is_a_reason(model: str, words: str) -> None:
    assert "not known" in reason(changed("GT0416", model=model, grad_ckpt=words))


@pytest.mark.parametrize(
    ("words", "numbers", "bytes_per_weight"),
    [
        ("none", "none", 2),
        ("fp8 (torchao dynamic)", "float8-dynamic", 1),
        ("fp8 weight-only (torchao)", "float8", 1),
    ],
)
def test_each_backend_is_asked_as_what_it_is(words: str, numbers: str, bytes_per_weight: int) -> None:
    """SimpleTuner quantises every linear layer, and trains through torchao's own operators."""
    one = changed("GT0416", quantization=words, method="lora" if numbers == "none" else "qlora")
    assert isinstance(one, BacktestQuestion)
    quantize = one.experiment.quantize
    assert quantize.denoiser == numbers
    assert quantize.keep == (None if numbers == "none" else ())
    form = StepForm.of(one.experiment, is_checkpointed=True, habits=one.dialect.habits)
    assert form.habits.torchao_autograd == (numbers != "none")
    assert ("derivative-torchao" in form.slug()) == (numbers != "none")
    row = catalog.denoiser("sd3.5-medium")
    assert row.lora_params_per_rank is not None
    adapter_bytes = 10 * 128 * row.lora_params_per_rank.attn_qkvo
    assert baseline_bytes(one) == bytes_per_weight * row.num_params + adapter_bytes


def test_lion_of_two_states_in_bf16_is_one_of_one_state_in_fp32() -> None:
    one = asked("GT0378")
    optimizer, train = one.experiment.optimizer, one.experiment.train
    assert (optimizer.kind, optimizer.compensation, train.weight_dtype) == ("lion", "none", "bf16")
    assert train.gradient_accumulation == 2, "gradients stay"
    lora = catalog.denoiser("qwen-image").lora_params_per_rank
    assert lora is not None
    assert baseline_bytes(one) == 2 * catalog.denoiser("qwen-image").num_params + 8 * 8 * lora.attn_qkvo


def test_optimizers_of_cogvideox_factory() -> None:
    """In 8 bits beside fp32 adapters; or on the host, where each gradient goes as soon as it is there."""
    eight_bit, on_host = asked("GT0119"), asked("GT0134")
    lora = catalog.denoiser("cogvideox-2b").lora_params_per_rank
    assert lora is not None
    base_bytes, num_trained = 2 * catalog.denoiser("cogvideox-2b").num_params, 256 * lora.attn_qkvo
    assert (eight_bit.experiment.optimizer.kind, eight_bit.experiment.train.weight_dtype) == ("adamw8bit", "fp32")
    assert eight_bit.experiment.train.max_grad_norm == 1.0
    assert baseline_bytes(eight_bit) == base_bytes + 10 * num_trained
    levers, train = on_host.experiment.levers, on_host.experiment.train
    assert (on_host.experiment.optimizer.kind, levers.optimizer_offload, levers.fused_backward) == ("adamw", True, True)
    assert (train.max_grad_norm, train.gradient_accumulation) == (None, 1)
    assert baseline_bytes(on_host) == base_bytes + 4 * num_trained


def test_lokr_of_one_factor() -> None:
    one = asked("GT0462")
    method = one.experiment.method
    assert method.kind == "lokr"
    assert (method.factor, method.full_matrix, method.targets, method.dropout) == (12, True, None, 0.0)
    assert baseline_bytes(one) == 2 * catalog.denoiser("sdxl-unet").num_params
    assert "LoKr" in reason(question(ROWS["GT0355"])), "one factor for attention and another one beside it"
    assert "was not read" in reason(changed("GT0462", framework="finetrainers v0.0.1", model="CogVideoX-5b"))


def test_an_offload_of_attention_is_one_of_what_its_program_moves() -> None:
    rows = catalog.measurements()
    for row_id, share, segment in (("GT0414", 1.0, 1), ("GT0423", 1.0, 2)):
        asked = question(rows[row_id])
        assert isinstance(asked, BacktestQuestion)
        levers = asked.experiment.levers
        assert (levers.activation_offload, levers.activation_offload_parts) == (True, "attention")
        assert (levers.gradient_checkpointing, levers.checkpoint_segment) == (share, segment)
        assert asked.dialect.habits.leaves_stay


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"task": "infer"}, "not a training"),
        ({"model": "Somebody's UNet (4B)"}, "not in the catalogue"),
        ({"framework": "my-trainer 0.3"}, "not known"),
        ({"method": "qlora"}, "quantisation of the base"),
        ({"method": "dora"}, "not understood"),
        ({"quantization": "nf4 (bnb)"}, "quantised base"),
        ({"quantization": "int8-quanto"}, "quanto"),
        ({"quantization": "int8 (SDNQ hadamard)"}, "SDNQ"),
        ({"quantization": "none (T5 8-bit)"}, "text encoder"),
        ({"optimizer": "Muon"}, "not understood"),
        ({"optimizer": "AdamW8bitKahan + gradient release"}, "compensation"),
        ({"optimizer": "Lion8bit paged"}, "8-bit states"),
        ({"optimizer": "AdamW CPUOffloadOptimizer"}, "whether gradients"),
        ({"optimizer": "AdamW (DeepSpeed CPU offload)"}, "sharded or offloaded"),
        ({"optimizer": "Adafactor"}, "Adafactor"),
        ({"optimizer": None}, "not stated"),
        ({"precision": None}, "not stated"),
        ({"precision": "int7"}, "not understood"),
        ({"precision": "bf16 + FP8 GEMMs"}, "8-bit numbers"),
        ({"resolution": "unknown (512-1024)"}, "not stated"),
        ({"resolution": "512/768/1024"}, "not one size"),
        ({"resolution": "about a megapixel"}, "not understood"),
        ({"resolution": None}, "not stated"),
        ({"batch_size_per_gpu": None}, "batch size"),
        ({"grad_ckpt": "sometimes"}, "sometimes"),
        ({"grad_ckpt": None}, "not stated"),
        ({"grad_ckpt": "partial"}, "partial"),
        ({"grad_ckpt": "none + activation offload"}, "offload that is not understood"),
        ({"lora_targets": "all components (MLP)"}, "adapters on"),
        ({"parallelism": "FSDP2"}, "not all on one device"),
        ({"num_gpus": 4}, "4 devices"),
        ({"peak_mem_kind": "step-1 report"}, "which peak"),
        ({"framework": "diffusers script", "cache_latents": "not stated"}, "were cached"),
        ({"peak_mem_kind": "memory after backward"}, "not a peak"),
    ],
)
def test_words_that_are_not_understood_are_reasons(changes: dict[str, Any], part: str) -> None:
    assert part in reason(changed("GT0416", **changes))


@pytest.mark.parametrize(
    ("text", "width_px", "height_px"),
    [
        ("1024x1024", 1024, 1024),
        ("720x480", 720, 480),
        ("512^2 pixel-area", 512, 512),
        ("480 pixel-area or 768x512 (page)", 480, 480),
        ("480p", 832, 480),
        ("49x512x768", 768, 512),
        ("1024 (assumed)", 1024, 1024),
        ("1328 × 1024", 1328, 1024),
    ],
)
def test_forms_of_a_resolution(text: str, width_px: int, height_px: int) -> None:
    one = changed("GT0416", resolution=text)
    assert isinstance(one, BacktestQuestion)
    assert (one.sizes.width_px, one.sizes.height_px) == (width_px, height_px)


@pytest.mark.parametrize(
    ("gpu", "memory_gb", "device"),
    [
        ("L40S", 48.0, "l40s"),
        ("L4", 24.0, "l4"),
        ("A100", 40.0, "a100-40gb-sxm"),
        ("RTX 4090 (as claimed)", 24.0, "rtx-4090"),
        ("RTX 4070 Ti", None, "rtx-4070-ti"),
        ("H100 SXM", 80.0, "h100-sxm"),
        ("H100/H800", 80.0, "h100-sxm"),
        ("A100/H100", 80.0, "a100-80gb-sxm"),
        ("A100/H100", None, None),
        ("A100", None, None),
        ("(any)", None, None),
        ("Abacus 3000", None, None),
    ],
)
def test_names_of_devices(gpu: str, memory_gb: float | None, device: str | None) -> None:
    one = changed("GT0416", gpu=gpu, gpu_mem_gb=memory_gb)
    assert isinstance(one, BacktestQuestion)
    assert one.device == device
    assert (one.device_bytes is None) == (device is None)


def test_every_dialect_says_where_it_was_read() -> None:
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
    for dialect in DIALECTS:
        assert all("github:" in dialect.sources[0] for _ in dialect.sources)
        assert dialect.unverified, "whoever read everything says so by removing this"
