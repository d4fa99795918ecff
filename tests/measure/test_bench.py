"""A bench: fixed steps in run directories like any other, summed up as hand computation would."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file

from foretune.choices.running import Parallel
from foretune.choices.training import Precision
from foretune.config.lengths import only_steps
from foretune.config.reading import Asked, understand
from foretune.core.errors import UserError
from foretune.core.observer import Observer
from foretune.core.values import RunRecord
from foretune.data.buckets import Bucket
from foretune.measure import bench as bench_module
from foretune.measure import bench_inference, bench_worker, fresh_process, inference, peak, worker_output
from foretune.measure.bench import BenchChoices, bench, measure_once, read_repeat
from foretune.measure.bench_inference import InferenceChoices
from foretune.measure.bench_request import InferenceRequest, TrainingRequest, with_lever
from foretune.measure.bench_summary import Repeat, summary_of
from foretune.measure.bench_worker import measure_training
from foretune.measure.fresh_process import MeasurementFailed
from foretune.measure.inference import measure_inference
from foretune.measure.peak import measured_peak
from foretune.measure.step_flops import StepFlops
from foretune.measure.synthetic import SyntheticBatches
from foretune.measure.worker_output import Teller
from foretune.models.locating import open_family
from foretune.record.events import read_events
from foretune.record.run_directory import RunDirectory
from foretune.stats.intervals import ONE_RUN
from foretune.step.precision import PrecisionPolicy
from foretune.training import preparing
from foretune.training.ranks import Ranks

TinyPipeline = Callable[..., Path]


def asked_on(folder: Path, **train: Any) -> Asked:
    return understand(
        {
            "name": "small",
            "model": str(folder),
            "method": {"kind": "full"},
            "data": {"kind": "shapes", "num_samples": 16, "resolution": 32},
            "train": {"epochs": 2, "batch_size": 2, "precision": "fp32", **train},
            "validate": {"prompts": ["a"], "every": 1},
            "save": {"every": 1},
        },
        source="test",
    )


def training(asked: Asked, directory: Path, **more: Any) -> TrainingRequest:
    return TrainingRequest(asked=only_steps(asked.as_asked, 10), directory=str(directory), is_synthetic=True, **more)


def test_only_the_steps_are_left(tiny_pipeline: TinyPipeline) -> None:
    asked = asked_on(tiny_pipeline("ddpm"))
    left = only_steps(asked.as_asked, 7)
    assert left["train"] == {"batch_size": 2, "precision": "fp32", "steps": 7}
    assert left["validate"] == {"num_held_out": 0, "prompts": []}
    assert "save" not in left
    assert asked.as_asked["train"]["epochs"] == 2, "what was asked stays as it is"
    assert with_lever({"levers": {"a": 1}}, "compile", "off") == {"levers": {"a": 1, "compile": "off"}}


def test_a_repeat_is_an_ordinary_run_without_checkpoints(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    asked = asked_on(tiny_pipeline("ddpm"))
    path = measure_training(training(asked, tmp_path, model_flops=1e6), Observer())
    run = RunDirectory.open(path)
    record = run.read_record()
    assert record is not None
    assert record.outcome.status == "finished"
    assert record.measured.num_step_times == 10
    assert not any(run.checkpoints.iterdir())
    kinds = [event["kind"] for event in read_events(run.events)]
    assert kinds.count("step") == 10
    assert "validated" not in kinds
    assert 0 < (record.measured.utilisation or 0) < 1
    assert record.measured.compile_s is None, "nothing was compiled"
    repeat = read_repeat(path)
    assert repeat.samples_per_step == 2
    assert len(repeat.step_times_s) == 10
    assert repeat.peak_source is not None
    assert repeat.peak_source.startswith("measured")


def test_an_impossible_speed_does_not_cost_the_measurement(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    path = measure_training(training(asked_on(tiny_pipeline("ddpm")), tmp_path, model_flops=1e18), Observer())
    record = RunDirectory.open(path).read_record()
    assert record is not None
    assert record.outcome.status == "finished"
    assert record.measured.median_step_s is not None
    assert record.measured.utilisation is None
    # Warnings of other parts of the run are not what this test is about.
    (warning,) = (text for text in record.warnings if "Utilisation was not measured" in text)
    assert "nothing computes faster than its peak" in warning
    flops = StepFlops(1e18, 1e18)
    series = summary_of([read_repeat(path)], flops)
    assert (series.model_utilisation, series.hardware_utilisation) == (None, None)
    assert any("nothing computes faster" in warning for warning in series.warnings)


def test_no_memory_for_the_peak_does_not_cost_the_measurement(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(device: torch.device, precision: str) -> NoReturn:
        (written,) = (tmp_path / "runs").rglob("record.json")
        assert RunRecord.from_json(written.read_text()).measured.median_step_s is not None, "written before"
        raise torch.AcceleratorError("CUDA error: out of memory")

    monkeypatch.setattr(bench_worker, "measured_peak", no_memory)
    path = measure_training(training(asked_on(tiny_pipeline("ddpm")), tmp_path, model_flops=1e6), Observer())
    record = RunDirectory.open(path).read_record()
    assert record is not None
    assert record.outcome.status == "finished"
    assert record.measured.utilisation is None
    assert [warning for warning in record.warnings if "Utilisation was not measured" in warning]
    assert read_repeat(path).peak_flops_per_s is None


def test_a_fresh_process_measures(tmp_path: Path, tiny_pipeline: TinyPipeline) -> None:
    path = measure_once(asked_on(tiny_pipeline("ddpm")), tmp_path, num_steps=8, is_synthetic=True)
    assert path.parent == tmp_path / "runs"
    assert len(read_repeat(path).step_times_s) == 8


def test_the_process_tells_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = io.StringIO()
    question = TrainingRequest(asked={"model": str(tmp_path / "nowhere")}, directory=str(tmp_path)).to_mapping()
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
    monkeypatch.setattr(worker_output, "own_output", lambda: contextlib.nullcontext(reported))
    worker_output.answer_once(bench_worker.answer)
    (line,) = map(json.loads, reported.getvalue().splitlines())
    assert line["failed"] == "refused"
    assert "nowhere" in line["reason"]


def test_a_process_that_dies_is_distinguished_from_one_out_of_memory() -> None:
    assert fresh_process._died(-9, "").status == "out of memory"
    aborted = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert fresh_process._died(-6, aborted).status == "out of memory"
    other = fresh_process._died(1, "first\nTypeError: planted\n")
    assert other.status == "failed"
    assert "planted" in str(other)


def repeat_of(*times_s: float, batch: int = 4, **measured: Any) -> Repeat:
    empty = dict.fromkeys(
        ("energy_j", "mean_power_w", "compile_s", "peak_device_bytes", "peak_reserved_bytes", "peak_host_bytes")
    )
    return Repeat(
        run="r",
        step_times_s=times_s,
        samples_per_step=batch,
        measured={**empty, **measured},
        peak_flops_per_s=100.0,
        peak_source="a data sheet",
    )


def test_rates_are_those_of_hand_computed_steps() -> None:
    first, second = repeat_of(*[0.5] * 20, energy_j=80.0, peak_host_bytes=5), repeat_of(*[0.5] * 20, energy_j=240.0)
    series = summary_of([first, second], StepFlops(model=10.0, hardware=15.0))
    assert series.samples_per_s is not None
    assert series.iterations_per_s is not None
    assert series.samples_per_s[0] == pytest.approx(8.0), "4 samples in half a second, not the volume of all steps"
    assert series.iterations_per_s[0] == pytest.approx(2.0)
    assert (series.model_utilisation, series.hardware_utilisation) == pytest.approx((0.2, 0.3))
    assert series.energy_per_sample_j == pytest.approx(160 / 80)
    assert series.peak_host_bytes == 5
    assert series.peak_device_bytes is None, "what was not measured is not zero"
    assert series.step_s.num_dropped == 0
    warm = summary_of([repeat_of(9.0, *[0.5] * 20), repeat_of(9.0, *[0.5] * 20)], None)
    assert warm.step_s.num_dropped == 2
    assert warm.model_utilisation is None


def test_steps_that_wait_now_and_then_count_with_their_whole_length() -> None:
    bursts = [0.1, 0.1, 0.1, 0.5] * 10
    series = summary_of([repeat_of(*bursts), repeat_of(*bursts)], None)
    assert series.step_s.value == pytest.approx(0.1)
    assert series.samples_per_s is not None
    assert series.samples_per_s[0] == pytest.approx(4 * len(bursts) / sum(bursts)), "20 samples/s, not 40"
    assert any("0.20 s on average, the median is 0.10 s" in text for text in series.warnings)
    even = summary_of([repeat_of(*[0.1, 0.105] * 20)] * 2, None)
    assert even.warnings == ()


def test_a_compiled_experiment_is_measured_both_ways_in_turns(
    tmp_path: Path, tiny_pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = asked_on(tiny_pipeline("ddpm"))
    asked = understand({**plain.as_asked, "levers": {"compile": "regional"}}, source="test")
    order: list[str] = []

    def measure(one: Asked, directory: Path, **_: Any) -> Path:
        order.append(one.as_asked["levers"]["compile"])
        return directory

    def read(run: Path) -> Repeat:
        is_plain = run.name == "uncompiled"
        return repeat_of(*([0.2] * 20 if is_plain else [10.1, *[0.1] * 19]), compile_s=None if is_plain else 10.0)

    monkeypatch.setattr(bench_module, "measure_once", measure)
    monkeypatch.setattr(bench_module, "read_repeat", read)
    monkeypatch.setattr(bench_module, "step_flops", lambda _: StepFlops(1.0, 1.0))
    found = bench(asked, BenchChoices(num_repeats=3), tmp_path, Observer())
    assert order == ["regional", "off"] * 3
    assert found.series.compile_s == pytest.approx(10.0)
    assert found.break_even is not None
    assert found.break_even.step == pytest.approx(100, abs=1)
    stored = json.loads((found.path / "bench.json").read_text())
    assert stored["break_even"]["step"] == found.break_even.step
    assert stored["as_asked"]["repeats"][0]["step_times_s"][0] == 10.1, "raw times are kept, warm-up too"
    alone = bench(asked, BenchChoices(num_repeats=1, has_break_even=False), tmp_path, Observer())
    assert alone.break_even is None
    once = bench(asked, BenchChoices(num_repeats=1), tmp_path, Observer())
    assert f"uncompiled: {ONE_RUN}" in once.warnings, "the break-even rests on these runs, too"


def test_inference_halves_the_batch_until_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def ask(request: InferenceRequest, observer: Observer) -> dict[str, Any]:
        tried.append(request.batch_size)
        if request.batch_size > 64:
            raise MeasurementFailed("out of memory", "planted")
        memory = dict.fromkeys(("peak_device_bytes", "peak_reserved_bytes"))
        return {
            "times_s": [0.5] * 20,
            "size_px": 32,
            "num_frames": None,
            "device": "cpu",
            "peak_host_bytes": 7,
            **memory,
        }

    monkeypatch.setattr(bench_inference, "ask_fresh_process", ask)
    choices = InferenceChoices(batch_size=256, num_repeats=2, num_images=1)
    found = bench_inference.bench_inference("m", None, choices, tmp_path, Observer())
    assert tried == [256, 128, 64, 64, 1, 1]
    assert (found.batch_size, found.did_not_fit, found.is_reduced) == (64, (256, 128), True)
    assert found.pass_s.value == pytest.approx(0.5)
    fitting = bench_inference.bench_inference("m", None, InferenceChoices(batch_size=8), tmp_path, Observer())
    assert not fitting.is_reduced
    monkeypatch.setattr(bench_inference, "ask_fresh_process", _never)
    with pytest.raises(UserError, match="batch of 1"):
        bench_inference.bench_inference("m", None, InferenceChoices(batch_size=4), tmp_path, Observer())


def _never(request: InferenceRequest, observer: Observer) -> dict[str, Any]:
    raise MeasurementFailed("out of memory", "planted")


def test_denoising_steps_and_images_are_timed(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    model = str(tiny_pipeline("ddpm"))
    with (tmp_path / "reported").open("w") as file:
        steps = measure_inference(InferenceRequest(model=model, batch_size=2, num_steps=3), Teller(file))
        images = measure_inference(InferenceRequest(model=model, num_steps=2, num_images=2), Teller(file))
    assert len(steps["times_s"]) == 3
    assert len(images["times_s"]) == 2
    assert min(*steps["times_s"], *images["times_s"]) > 0
    assert steps["peak_host_bytes"] > 0
    assert steps["peak_device_bytes"] is None


class Beside(Ranks):
    """One of two processes; both say the same."""

    def from_all(self, value: Any) -> list[Any]:
        return [value, value]

    def wait(self) -> None:
        """The other one has been here."""


def test_two_devices_share_the_seeds(tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    """The images that are kept are those of one device, whichever made them."""
    request = InferenceRequest(model=str(tiny_pipeline("ddpm")), num_steps=2, num_images=3, device="cpu")
    alone = dataclasses.replace(request, images_file=str(tmp_path / "alone"))
    shared = dataclasses.replace(request, images_file=str(tmp_path / "shared"), devices=2)
    measure_inference(alone, Observer())
    # The first one gathers, so it comes last here.
    measure_inference(shared, Observer(), Beside(rank=1, size=2))
    found = measure_inference(shared, Observer(), Beside(rank=0, size=2))
    assert len(found["times_s"]) == 3
    assert len(found["times_s_by_device"]) == 2
    images = [load_file(tmp_path / name)["images"] for name in ("alone", "shared")]
    assert torch.equal(*images)
    assert not torch.equal(images[0][0], images[0][1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "shared"]


def test_a_step_of_all_devices_ends_with_the_last_one() -> None:
    assert inference.times_of_all([[1.0, 1.0, 1.0]]) == [1.0, 1.0, 1.0]
    # Ends after 1, 2, 6 s and after 2, 3, 4 s.
    assert inference.times_of_all([[1.0, 1.0, 4.0], [2.0, 1.0, 1.0]]) == [2.0, 1.0, 3.0]


def test_several_devices_are_started_by_the_process_of_the_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, int]] = []

    def launch(what: str, parallel: Parallel, worker: str, request: dict[str, Any], _: Observer) -> dict[str, Any]:
        started.append((worker, parallel.devices))
        if request["batch_size"] > 1:
            raise UserError("Process 0 of the run failed: torch.OutOfMemoryError: CUDA out of memory.")
        return {"times_s": [1.0]}

    monkeypatch.setattr(bench_worker, "launch_parts", launch)
    question = InferenceRequest(model="m", devices=2).to_mapping()
    with (Path("/dev/null")).open("w") as file:
        assert bench_worker.answer(dict(question), Teller(file)) == {"times_s": [1.0]}
        with pytest.raises(MemoryError):
            bench_worker.answer({**question, "batch_size": 2}, Teller(file))
    assert started == [("foretune.measure.bench_ranks", 2)] * 2


def limits_of(device: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The memory limits that a measurement sets for its process."""
    limits: list[int | None] = []
    monkeypatch.setattr(inference, "limit_memory", limits.append)
    request = InferenceRequest(model=str(model), num_steps=1, device=device, memory_limit_bytes=2**40)
    with (work / "reported").open("w") as file:
        measure_inference(request, Teller(file))
    return limits


def test_host_memory_is_limited_on_a_cpu(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits_of("cpu", tiny_pipeline("ddpm"), tmp_path, monkeypatch) == [2**40]


@pytest.mark.gpu
def test_host_memory_is_not_limited_on_a_gpu(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver maps more memory than it uses, and the limit would count that."""
    assert limits_of("cuda", tiny_pipeline("ddpm"), tmp_path, monkeypatch) == []


def test_searches_for_the_largest_batch_notice_a_full_card(
    tiny_pipeline: TinyPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows it would move memory to the host instead of failing. A training that looks for nothing may do so."""
    noticing: list[torch.device] = []
    monkeypatch.setattr(inference, "fail_when_full", noticing.append)
    limits_of("cpu", tiny_pipeline("ddpm"), tmp_path, monkeypatch)
    assert len(noticing) == 1
    experiment, family = asked_on(tiny_pipeline("ddpm")).experiment, open_family(tiny_pipeline("ddpm"))
    monkeypatch.setattr(preparing, "fail_when_full", noticing.append)
    preparing.checked_device(experiment, family, Observer())
    assert len(noticing) == 1
    monkeypatch.setattr(preparing, "num_given_devices", lambda: 1)
    preparing.checked_device(experiment, family, Observer())
    assert len(noticing) == 2


def test_made_up_batches_have_the_shapes_of_the_family(tiny_pipeline: TinyPipeline) -> None:
    family = open_family(tiny_pipeline("flux"))
    made = SyntheticBatches(
        family=family, batch_size=2, gradient_accumulation=2, size=Bucket(64, 64), num_text_tokens=16, seed=1
    )
    batch, again, later = made[3], made[3], made[4]
    latent = (2, *family.latent_shape(64, 64))
    assert (batch.step, batch.micro) == (1, 1)
    assert batch.noise.shape == latent
    assert batch.moments is not None
    assert batch.moments.shape == (2, 2 * latent[1], *latent[2:])
    assert batch.conditioning is not None
    specs = family.conditioning_specs(2, 16)
    assert {name: tuple(t.shape) for name, t in batch.conditioning.items()} == {n: s.shape for n, s in specs.items()}
    assert torch.equal(batch.noise, again.noise)
    assert not torch.equal(batch.noise, later.noise)


def test_a_measured_peak_says_so() -> None:
    rate = measured_peak(torch.device("cpu"), "fp32")
    assert rate.is_measured
    assert rate.flops_per_s > 1e8


@pytest.mark.parametrize(("precision", "allows_tf32"), [("tf32", True), ("fp32", False)])
def test_a_peak_is_measured_in_the_precision_of_the_run(
    precision: Precision, allows_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = []
    product = torch.mm

    def spied(*arguments: Any, **options: Any) -> torch.Tensor:
        flags.append(torch.backends.cuda.matmul.allow_tf32)
        return product(*arguments, **options)

    monkeypatch.setattr(peak, "_SIZES", {"other": (16,)})
    monkeypatch.setattr(peak, "_MEASURE_FOR_S", 1e-3)
    monkeypatch.setattr(torch, "mm", spied)
    with PrecisionPolicy("fp32" if allows_tf32 else "tf32").products():
        measured_peak(torch.device("cpu"), precision)
    assert set(flags) == {allows_tf32}


def test_a_peak_without_memory_for_the_largest_product_is_that_of_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fastest(device: torch.device, dtype: torch.dtype, size: int) -> float:
        if size > 32:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1e9 * size

    monkeypatch.setattr(peak, "_SIZES", {"other": (16, 32, 64)})
    monkeypatch.setattr(peak, "_fastest_product", fastest)
    assert measured_peak(torch.device("cpu"), "bf16").flops_per_s == 32e9
    monkeypatch.setattr(peak, "_SIZES", {"other": (64,)})
    with pytest.raises(torch.OutOfMemoryError):
        measured_peak(torch.device("cpu"), "bf16")
