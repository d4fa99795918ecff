"""DeepSpeed configs, inline and in JSON files, become their FSDP2 equivalent; what differs is in plain words."""

from pathlib import Path

import pytest

import foretune as ft
from tests.config.accelerate_files import OFFLOADED, SHARDED, answers, deepspeed, merged, write_config, write_deepspeed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "default_config.yaml"


def test_what_offload_becomes_depends_on_sharding(file: Path) -> None:
    key = "deepspeed_config.offload_optimizer_device"
    sharded = ft.import_accelerate(write_config(file, **deepspeed(zero_stage=2, **OFFLOADED)))
    assert answers(sharded)[key].outcome == "not supported"
    assert "Nearest: parallel.sharding=none" in answers(sharded)[key].text
    assert any("levers.optimizer_offload=true" in sentence for sentence in sharded.found.differs)
    alone = ft.import_accelerate(write_config(file, **deepspeed(1, zero_stage=2, **OFFLOADED)))
    assert answers(alone)[key].outcome == "translated"
    weights = ft.import_accelerate(write_config(file, **deepspeed(1, zero_stage=3, offload_param_device="cpu")))
    answer = answers(weights)["deepspeed_config.offload_param_device"]
    assert (answer.outcome, "levers.block_swap" in answer.text) == ("not supported", True)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (0, "ZeRO-0 shards nothing"),
        (1, "ZeRO-1 shards optimizer states only"),
        (2, "ZeRO-2 shards optimizer states and gradients only"),
        (3, "ZeRO-3 and FSDP2 both shard weights, gradients and optimizer states"),
    ],
)
def test_the_stages_of_zero_are_compared_in_plain_words(stage: int, words: str, file: Path) -> None:
    imported = ft.import_accelerate(write_config(file, **deepspeed(zero_stage=stage)))
    sentences = imported.found.same if stage in (0, 3) else imported.found.differs
    assert any(words in sentence for sentence in sentences)
    # DDP is named as the faster choice where only states were sharded.
    assert any("parallel.sharding=none" in one for one in imported.found.differs) == (stage in (1, 2))


ZERO3 = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
    "fp16": {"enabled": False, "loss_scale": 0, "initial_scale_power": 16},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "offload_param": {"device": "none", "pin_memory": True},
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-7, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-5, "warmup_num_steps": 50, "total_num_steps": 1000},
    },
    "steps_per_print": 100,
    "wall_clock_breakdown": False,
}


def test_without_a_stage_it_is_the_second(file: Path) -> None:
    """As in accelerate's DeepSpeedPlugin."""
    imported = ft.import_accelerate(write_config(file, **deepspeed()))
    assert answers(imported)["distributed_type"].text.startswith("ZeRO-2 becomes ")


def test_a_deepspeed_file_with_numbers(file: Path) -> None:
    imported = ft.import_accelerate(write_deepspeed(file, ZERO3))
    assert imported.unsupported == ()
    assert imported.settings == {
        "parallel.devices": 4,
        "parallel.sharding": "full",
        "train.batch_size": 2,
        "train.gradient_accumulation": 4,
        "train.max_grad_norm": 0.5,
        "train.precision": "bf16",
        "train.weight_dtype": "bf16",
        "optimizer.kind": "adamw",
        "optimizer.lr": 2e-5,
        "optimizer.betas": [0.9, 0.95],
        "optimizer.eps": 1e-7,
        "optimizer.weight_decay": 0.1,
        "optimizer.schedule": "linear",
        "optimizer.warmup_steps": 50,
    }
    experiment = merged(imported, "full").experiment
    assert experiment.samples_per_step() == ZERO3["train_batch_size"]
    assert answers(imported)["ds.json: zero_optimization.stage"].outcome == "translated"


def test_a_deepspeed_file_that_leaves_numbers_to_the_script(file: Path) -> None:
    auto = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_max_lr": "auto"}},
    }
    imported = ft.import_accelerate(write_deepspeed(file, auto, mixed_precision="bf16"))
    assert imported.settings == {
        **SHARDED,
        "parallel.devices": 4,
        "train.precision": "bf16",
        "optimizer.kind": "adamw",
        "optimizer.schedule": "constant",
    }
    merged(imported)


def test_defaults_of_deepspeed_are_kept_where_they_are_others(file: Path) -> None:
    """It neither clips gradients nor decays weights unless its file says so; both are on here."""
    imported = ft.import_accelerate(
        write_deepspeed(file, {"zero_optimization": {"stage": 0}, "optimizer": {"type": "AdamW", "params": {}}})
    )
    assert imported.settings["train.max_grad_norm"] is None
    assert imported.settings["optimizer.weight_decay"] == 0
    assert imported.settings["train.precision"] == "fp32"
    # Without a JSON file accelerate clips at 1, which is the default here too.
    assert "train.max_grad_norm" not in ft.import_accelerate(write_config(file, **deepspeed(zero_stage=2))).settings


def test_a_deepspeed_file_in_fp16_with_groups(file: Path) -> None:
    config = {
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 3, "mics_shard_size": 2},
        "gradient_clipping": 1,
    }
    imported = ft.import_accelerate(write_deepspeed(file, config))
    assert imported.settings == {
        "parallel.devices": 4,
        "parallel.sharding": "hybrid",
        "parallel.shard_devices": 2,
        "train.precision": "bf16",
        "train.max_grad_norm": 1.0,
    }
    assert imported.unsupported == ("ds.json: fp16.enabled",)
    merged(imported)


def test_the_batch_follows_from_the_other_two_numbers(file: Path) -> None:
    config = {"train_batch_size": 64, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}
    assert ft.import_accelerate(write_deepspeed(file, config)).settings["train.batch_size"] == 8


def test_values_beside_a_deepspeed_file_do_not_count(file: Path) -> None:
    inline = {"deepspeed_config_file": "ds.json", "zero_stage": 3, "gradient_accumulation_steps": 7}
    imported = ft.import_accelerate(
        write_deepspeed(file, {"zero_optimization": {"stage": 0}}, deepspeed_config=inline, mixed_precision="bf16")
    )
    assert imported.settings["parallel.sharding"] == "none"
    assert "train.gradient_accumulation" not in imported.settings
    assert imported.settings["train.precision"] == "fp32"
    assert answers(imported)["deepspeed_config.zero_stage"].outcome == "not needed"


def test_keys_of_a_deepspeed_file_that_are_not_supported_or_not_known_are_named(file: Path) -> None:
    config = {
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu"},
            "zero_quantized_weights": True,
            "stgae": 1,
        },
        "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}},
        "scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1e-3}},
        "activation_checkpointing": {"cpu_checkpointing": True, "profile": False},
        "wandb": {"enabled": True},
        "mystery": {"inner": 1},
    }
    imported = ft.import_accelerate(write_deepspeed(file, config))
    found = {answer.key.removeprefix("ds.json: "): answer for answer in imported.keys}
    unsupported = [
        *("zero_optimization.offload_param.device", "zero_optimization.zero_quantized_weights"),
        *("optimizer.type", "optimizer.params.lr", "scheduler.type", "scheduler.params.cycle_max_lr"),
        *("activation_checkpointing.cpu_checkpointing", "wandb.enabled"),
    ]
    assert {found[key].outcome for key in unsupported} == {"not supported"}
    assert all("Nearest" in found[key].text for key in unsupported)
    assert found["activation_checkpointing.profile"].outcome == "not needed"
    assert found["mystery.inner"].outcome == "unknown"
    assert found["zero_optimization.stgae"].text == "Did you mean 'zero_optimization.stage'?"
