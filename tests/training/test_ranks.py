"""Several processes train one model: the same losses as one, one run directory, one decision."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from foretune.catalog import TRAINABLE
from foretune.choices.running import Parallel
from foretune.config.reading import understand
from foretune.core.errors import Refused
from foretune.record.checking import check_run
from foretune.record.run_directory import RunDirectory
from foretune.training.changed_run import read_changed
from foretune.training.checkpoint_files import Checkpoint, read
from foretune.training.ranks import Ranks, check_ranks, first_host, found_ranks, lost_process
from tests.training.rank_runs import run_ranks
from tests.training.short_runs import events_of, losses_of, short_mapping

if TYPE_CHECKING:
    from tests.forked_python import ForkedPython

TinyPipeline = Callable[..., Path]


def mapping(model: Path, work: Path, size: int, *, batch: int = 4, **sections: Any) -> dict[str, Any]:
    """An experiment of ten steps whose global batch is the same for every number of processes."""
    accumulation = sections.get("train", {}).get("gradient_accumulation", 1)
    train = {"steps": 10, "batch_size": batch // size // accumulation, **sections.pop("train", {})}
    parallel = {"devices": size, "device": "cpu", **sections.pop("parallel", {})}
    return short_mapping(model, work, sections.pop("method", "lora"), train=train, parallel=parallel, **sections)


def final_state(run: Path) -> Checkpoint:
    _, experiment, _ = RunDirectory(run).read_experiment()
    parts = ("weights", "optimizer", "ema") if experiment.train.ema else ("weights", "optimizer")
    return read(max((run / "checkpoints").iterdir()), parts)


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(final_state(run).tensors["weights"])


def distance(ends: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Of all weights together: where a gradient is almost zero, Adam makes a whole step of its rounding."""
    differences = torch.cat([(ends[key] - weight).flatten() for key, weight in expected.items()])
    return float(differences.norm() / torch.cat([weight.flatten() for weight in expected.values()]).norm())


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "DDP": (2, {}),
    "DDP of four": (4, {}),
    "DDP, accumulated": (2, {"train": {"gradient_accumulation": 2}}),
    "FSDP2": (2, {"parallel": {"sharding": "full"}}),
    "FSDP2, accumulated": (2, {"parallel": {"sharding": "full"}, "train": {"gradient_accumulation": 2}}),
    "HSDP": (4, {"parallel": {"sharding": "hybrid", "shard_devices": 2}}),
}

# Each takes a minute of processor time. These two have blocks in a transformer and in a UNet, and both methods.
ROUTINE = (("flux", "full"), ("ddpm", "lora"))


@pytest.mark.takes_turns
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("family", ["ddpm", "flux"])
def test_losses_and_weights_are_those_of_one_process(
    family: str,
    method: str,
    tiny_pipeline: TinyPipeline,
    tmp_path: Path,
    forked_python: "ForkedPython",
    proof_size: Callable[[int, int], int],
    report_figure: Callable[[str], None],
) -> None:
    if (family, method) not in ROUTINE and not proof_size(1, 0):
        pytest.skip("only with FORETUNE_PROOFS=full")
    model, num_steps = tiny_pipeline(family), proof_size(50, 10)
    # Roundings grow from step to step.
    nearly = partial(pytest.approx, rel=1e-5 if num_steps == 10 else 1e-3)
    asked = mapping(model, tmp_path, 1, method=method, train={"steps": num_steps})
    (alone,) = run_ranks(forked_python.python, 1, "trained", mapping=asked, runs=str(tmp_path / "1"))
    losses, weights = losses_of(RunDirectory(Path(alone["run"]))), final_weights(Path(alone["run"]))
    assert len(losses) == num_steps
    assert losses[0] != losses[-1]
    farthest = 0.0
    for name, (size, sections) in CASES.items():
        train = {"steps": num_steps, **sections.get("train", {})}
        asked = mapping(model, tmp_path, size, method=method, **{**sections, "train": train})
        found = run_ranks(forked_python.python, size, "trained", mapping=asked, runs=str(tmp_path / name))
        assert {one["run"] for one in found} == {found[0]["run"]}, "one run directory"
        assert {one["status"] for one in found} == {"finished"}
        assert len(list((tmp_path / name / "short").glob("2*"))) == 1
        run = RunDirectory(Path(found[0]["run"]))
        found_losses = losses_of(run)
        farthest = max(farthest, *(abs(one / other - 1) for one, other in zip(found_losses, losses, strict=True)))
        assert found_losses[:10] == pytest.approx(losses[:10], rel=1e-5), name
        assert found_losses == nearly(losses), name
        held_out = [event["held_out_loss"] for event in events_of(run, "validated")]
        expected = [event["held_out_loss"] for event in events_of(RunDirectory(Path(alone["run"])), "validated")]
        assert held_out == nearly(expected), name
        ends = final_weights(run.path)
        assert ends.keys() == weights.keys()
        assert distance(ends, weights) < 1e-3, name
        assert all(one["num_changed"] == alone["num_changed"] for one in found), "sums over shards"
        assert all(one["base_unchanged"] == alone["base_unchanged"] for one in found)
    report_figure(f"{family} {method}, {num_steps} steps on 1, 2 and 4 processes: losses within {farthest:.1e}")


@pytest.mark.parametrize(
    ("sharding", "sections"),
    [
        ("none", {"train": {"precision": "bf16", "weight_dtype": "bf16"}, "levers": {"optimizer_offload": True}}),
        ("full", {}),
    ],
    ids=["DDP, bf16 weights", "FSDP2"],
)
def test_looking_at_averaged_weights_changes_no_step(
    sharding: str,
    sections: dict[str, Any],
    tiny_pipeline: TinyPipeline,
    tmp_path: Path,
    forked_python: "ForkedPython",
) -> None:
    """The average takes the place of the weights for each validation. Processes that then no longer add up their
    gradients, or train on the average, report other losses.
    """
    losses = []
    for name, ema in (("without", None), ("with", {"decay": 0.9})):
        train = {"steps": 5, **sections.get("train", {}), "ema": ema}
        asked = mapping(
            tiny_pipeline("flux"),
            tmp_path,
            2,
            method="full",
            **{**sections, "train": train, "validate": {"every": 2}, "parallel": {"sharding": sharding}},
        )
        found = run_ranks(forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / name))
        run = RunDirectory(Path(found[0]["run"]))
        assert len(events_of(run, "validated")) == 4
        losses.append(losses_of(run))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("family", TRAINABLE)
def test_every_family_trains_on_two_processes(
    family: str, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    """As one process would: DDP waits for the gradient of each weight, FSDP2 gathers each block."""
    model = tiny_pipeline(family)

    def trained(size: int, sharding: str) -> RunDirectory:
        asked = mapping(
            model, tmp_path, size, batch=2, method="full", parallel={"sharding": sharding}, train={"steps": 3}
        )
        runs = tmp_path / f"{size} {sharding}"
        return RunDirectory(
            Path(run_ranks(forked_python.python, size, "trained", mapping=asked, runs=str(runs))[0]["run"])
        )

    alone = trained(1, "none")
    assert len(set(losses_of(alone))) == 3
    for sharding in ("none", "full"):
        run = trained(2, sharding)
        assert losses_of(run) == pytest.approx(losses_of(alone), rel=1e-4), sharding
        assert distance(final_weights(run.path), final_weights(alone.path)) < 1e-3, sharding


def test_sharded_weights_are_held_in_parts(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    model = tiny_pipeline("flux")
    asked = mapping(model, tmp_path, 2, method="full", parallel={"sharding": "full"})
    found = run_ranks(forked_python.python, 2, "prepared", mapping=asked)
    assert sum(one["num_own"] for one in found) == found[0]["num_weights"]
    assert max(one["num_own"] for one in found) < 0.52 * found[0]["num_weights"]
    asked = mapping(model, tmp_path, 2, method="full")
    found = run_ranks(forked_python.python, 2, "prepared", mapping=asked)
    assert all(one["num_own"] == one["num_weights"] for one in found), "DDP holds all of them in each"


def test_sharded_weights_are_gathered_in_bf16_and_kept_in_fp32(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    """FSDP2's mixed precision computes what autocast does, but for norms and biases, which it rounds too."""
    model, train = tiny_pipeline("flux"), {"precision": "bf16"}
    losses = {}
    for name, size, parallel in (
        ("one process", 1, {}),
        ("fp32", 2, {"sharding": "full", "gather_dtype": "fp32"}),
        ("bf16", 2, {"sharding": "full"}),
    ):
        asked = mapping(model, tmp_path, size, method="full", parallel=parallel, train=train)
        found = run_ranks(forked_python.python, size, "trained", mapping=asked, runs=str(tmp_path / name))
        losses[name] = losses_of(RunDirectory(Path(found[0]["run"])))
        assert {tensor.dtype for tensor in final_weights(Path(found[0]["run"])).values()} == {torch.float32}
    assert losses["one process"][-1] < 0.9 * losses["one process"][0]
    assert losses["fp32"] == pytest.approx(losses["one process"], rel=1e-2)
    assert losses["bf16"] == pytest.approx(losses["one process"], rel=1e-2)
    assert losses["bf16"] != losses["fp32"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_r6_a_global_batch_is_the_same_samples_in_the_same_order(
    size: int, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, size, batch=12, data={"num_samples": 80})
    found = run_ranks(forked_python.python, size, "prepared", mapping=asked, num_batches=5)
    steps = [[index for one in found for index in one["indices"][step]] for step in range(5)]
    assert all(len(set(step)) == 12 for step in steps), "each sample once"
    single = mapping(tiny_pipeline("ddpm"), tmp_path, 1, batch=12, data={"num_samples": 80})
    (alone,) = run_ranks(forked_python.python, 1, "prepared", mapping=single, num_batches=5)
    assert steps == alone["indices"]


@pytest.mark.takes_turns
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_a_signal_to_one_process_stops_all_after_the_same_step_and_the_run_goes_on(
    sharding: str, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2, parallel={"sharding": sharding}, train={"ema": {}})
    (whole, _) = run_ranks(forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / "whole"))
    stopped = run_ranks(
        forked_python.python,
        2,
        "trained",
        mapping=asked,
        runs=str(tmp_path / "stopped"),
        by_rank={"0": {"signal_after": 4}},
    )
    assert [one["status"] for one in stopped] == ["interrupted", "interrupted"]
    assert "SIGUSR1" in stopped[1]["reason"]
    assert stopped[0]["steps_done"] == stopped[1]["steps_done"] <= 6
    path = Path(stopped[0]["run"])
    assert [event["step"] for event in events_of(RunDirectory(path), "saved")] == [stopped[0]["steps_done"]]
    ended = run_ranks(forked_python.python, 2, "trained", resume=str(path))
    assert [one["status"] for one in ended] == ["finished", "finished"]
    first, again = final_state(Path(whole["run"])), final_state(path)
    assert first.step == again.step == 10
    for part, tensors in first.tensors.items():
        assert tensors.keys() == again.tensors[part].keys()
        assert all(torch.equal(tensor, again.tensors[part][key]) for key, tensor in tensors.items()), part


def test_two_processes_save_in_the_background(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    model, ends = tiny_pipeline("ddpm"), []
    for is_asynchronous in (False, True):
        save = {"every": 4, "keep": 9, "asynchronous": is_asynchronous}
        asked = mapping(model, tmp_path, 2, save=save, parallel={"sharding": "full"})
        found = run_ranks(forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / str(is_asynchronous)))
        assert [one["status"] for one in found] == ["finished", "finished"]
        run = RunDirectory(Path(found[0]["run"]))
        assert [event["step"] for event in events_of(run, "saved")] == [4, 8, 10]
        assert check_run(run.path).faults == ()
        ends.append([read(path, ("weights", "optimizer")) for path in sorted(run.checkpoints.iterdir())])
    for before, background in zip(*ends, strict=True):
        for part, tensors in before.tensors.items():
            assert all(torch.equal(tensor, background.tensors[part][key]) for key, tensor in tensors.items()), part


@pytest.mark.takes_turns
@pytest.mark.parametrize("at_fault", ["0", "1"])
def test_a_disk_that_fills_up_in_the_background_ends_both_processes(
    at_fault: str, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    save = {"every": 4, "keep": 9, "asynchronous": True}
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2, save=save, parallel={"sharding": "full"})
    found = run_ranks(
        forked_python.python,
        2,
        "trained",
        mapping=asked,
        runs=str(tmp_path / "runs"),
        # The last one: nothing comes after it that would notice.
        by_rank={at_fault: {"fault_at_save": 3}},
    )
    assert [(one["status"], one["steps_done"]) for one in found] == [("failed", 8), ("failed", 8)]
    assert all("No space left on device" in one["reason"] for one in found), found
    assert check_run(Path(found[0]["run"])).faults == ()


@pytest.mark.takes_turns
@pytest.mark.parametrize("every", [1, 3])
def test_two_processes_save_nothing_that_is_not_finite(
    every: int, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    """Also where the step is the last one, or its numbers were read before the save."""
    sections: dict[str, Any] = {"optimizer": {"lr": 1e30}, "save": {"every": every, "keep": 1}, "train": {"steps": 3}}
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 2, method="full", **sections)
    found = run_ranks(
        forked_python.python, 2, "trained", mapping=asked, runs=str(tmp_path / "runs"), reports_at_once=True
    )
    assert {one["status"] for one in found} == {"failed"}
    assert all("of step" in one["reason"] for one in found), found
    for path in (Path(found[0]["run"]) / "checkpoints").iterdir():
        weights = read(path, ("weights", "optimizer")).tensors["weights"].values()
        assert all(torch.isfinite(weight).all() for weight in weights)


RESHARDED: dict[str, tuple[int, dict[str, Any], int, list[str]]] = {
    "2 to 1": (2, {"sharding": "full"}, 1, ["parallel.sharding=none", "train.gradient_accumulation=2"]),
    "1 to 2": (1, {}, 2, ["parallel.sharding=full", "train.batch_size=2"]),
    "4 to 2": (
        4,
        {"sharding": "hybrid", "shard_devices": 2},
        2,
        ["parallel.sharding=none", "parallel.shard_devices=null", "train.batch_size=2"],
    ),
}


@pytest.mark.takes_turns
@pytest.mark.parametrize("case", RESHARDED)
def test_a_run_goes_on_with_another_number_of_processes(
    case: str, tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    before, parallel, after, overrides = RESHARDED[case]
    model = tiny_pipeline("ddpm")
    asked = mapping(model, tmp_path, 1, train={"ema": {}})
    (alone,) = run_ranks(forked_python.python, 1, "trained", mapping=asked, runs=str(tmp_path / "alone"))
    stopped = run_ranks(
        forked_python.python,
        before,
        "trained",
        mapping=mapping(model, tmp_path, before, train={"ema": {}}, parallel=parallel),
        runs=str(tmp_path / "runs"),
        by_rank={"0": {"signal_after": 4}},
    )
    assert {one["status"] for one in stopped} == {"interrupted"}
    path = Path(stopped[0]["run"])
    changes = [f"parallel.devices={after}", *overrides]
    ended = run_ranks(forked_python.python, after, "trained", resume=str(path), overrides=changes)
    assert {one["status"] for one in ended} == {"finished"}
    run, whole = RunDirectory(path), RunDirectory(Path(alone["run"]))
    assert losses_of(run) == pytest.approx(losses_of(whole), rel=1e-5)
    assert distance(final_weights(path), final_weights(whole.path)) < 1e-3
    assert run.read_experiment()[1].parallel.devices == after, "the directory says how the run went on"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimizer.lr=1", "optimizer.lr: a resumed run may change only parallel"),
        ("levers.optimizer_offload=true", "levers.optimizer_offload: a resumed run may change only"),
        ("parallel.devices=2", "x 2 .parallel.devices. x 1 .train.gradient_accumulation. is 8"),
        ("train.batch_size=2", "The global batch of the run is 4.* Nearest: train.gradient_accumulation=2"),
        ("parallel.devices=8", "is 32$"),
    ],
)
def test_a_resumed_run_is_the_same_run(override: str, words: str, tiny_pipeline: TinyPipeline, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "short")
    asked = mapping(tiny_pipeline("ddpm"), tmp_path, 1)
    run.write_experiment(asked, understand(asked, source=None).experiment, {})
    with pytest.raises(Refused, match=words):
        read_changed(run, [override])


def test_processes_that_would_train_different_things_are_refused(
    tiny_pipeline: TinyPipeline, tmp_path: Path, forked_python: "ForkedPython"
) -> None:
    model = tiny_pipeline("ddpm")
    other = mapping(model, tmp_path, 2, optimizer={"lr": 1e-2})
    found = run_ranks(
        forked_python.python,
        2,
        "trained",
        mapping=mapping(model, tmp_path, 2),
        runs=str(tmp_path / "runs"),
        by_rank={"1": {"mapping": other}},
    )
    assert all("differ in their experiment, data or model" in one["refused"] for one in found)


def test_a_process_leaves_its_group_whatever_the_threads_of_gloo_still_hold(forked_python: "ForkedPython") -> None:
    assert run_ranks(forked_python.python, 2, "left") == [{"left": True}] * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[/src/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 15000ms for recv", "did not answer for 9 s"),
        ("Application timeout caused pair closure", "did not answer for 9 s"),
        ("[/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", "was closed"),
        ("mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_a_lost_process_is_named(text: str, words: str | None) -> None:
    found = lost_process(RuntimeError(text), Parallel(devices=2, timeout_s=9.0))
    assert found is None if words is None else words in str(found)


SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
            Ranks(3, 4, 1, 2, "torchrun"),
        ),
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
            Ranks(3, 4, 1, 2, "SLURM"),
        ),
        (SLURM, None),
    ],
)
def test_a_process_finds_its_place(variables: dict[str, str], expected: Ranks | None) -> None:
    assert found_ranks(variables) == expected


@pytest.mark.parametrize(
    ("nodes", "host"), [("a", "a"), ("a,b", "a"), ("node[01-04,7],b", "node01"), ("n-1-[3,5]", "n-1-3")]
)
def test_the_first_node_of_a_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("devices", "found", "words"),
    [
        (8, None, "nothing started more than this process"),
        (8, Ranks(0, 4, 0, 4, "torchrun"), "torchrun started 4. Nearest: parallel.devices=4"),
        (1, Ranks(0, 2, 0, 2, "SLURM"), "SLURM started 2. Nearest: parallel.devices=2"),
    ],
)
def test_another_number_of_processes_than_devices_is_refused(devices: int, found: Ranks | None, words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_ranks(Parallel(devices=devices), found)


def test_what_is_sent_between_processes_is_json() -> None:
    alone = Ranks()
    assert alone.from_first({"a": [1, None]}) == {"a": [1, None]}
    assert alone.from_all("x") == ["x"]
    assert json.dumps(alone.from_all(1)) == "[1]"
