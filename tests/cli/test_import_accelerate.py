"""`foretune import-accelerate` as one types it, and what it says of files that are wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from foretune import import_accelerate
from foretune.config import read_experiment
from foretune.config.yaml_files import parse
from tests.cli.conftest import Foretune
from tests.config.accelerate_files import FSDP1, write_config, write_deepspeed


def test_sections_are_printed_and_what_has_no_equivalent_is_warned_about(foretune: Foretune, tmp_path: Path) -> None:
    asked = {**FSDP1, "fsdp_offload_params": True}
    file = write_config(tmp_path / "config.yaml", distributed_type="FSDP", num_processes=2, fsdp_config=asked)
    answer = foretune("import-accelerate", "config.yaml")
    assert answer.returncode == 0
    assert answer.stdout == import_accelerate(file).yaml
    assert answer.stdout.startswith("# From config.yaml, a config of Hugging Face accelerate. Add these keys ")
    assert parse(answer.stdout) == {
        "parallel": {"devices": 2, "sharding": "full"},
        "train": {"precision": "fp32"},
    }
    assert answer.stderr == (
        "Warning: no equivalent here: fsdp_config.fsdp_cpu_ram_efficient_loading, fsdp_config.fsdp_offload_params. "
        "The comments name the nearest.\n"
    )


def test_without_such_keys_there_is_no_warning(foretune: Foretune, tmp_path: Path) -> None:
    write_config(tmp_path / "config.yaml", distributed_type="MULTI_GPU", num_processes=2, mixed_precision="bf16")
    assert foretune("import-accelerate", "config.yaml").stderr == ""


def test_the_command_in_the_comments_changes_an_experiment_file(foretune: Foretune, tmp_path: Path) -> None:
    write_config(tmp_path / "config.yaml", distributed_type="MULTI_CPU", num_processes=2, use_cpu=True)
    printed = foretune("import-accelerate", "config.yaml").stdout
    assert foretune("init", "experiment.yaml", "--model", "foretune-shapes").returncode == 0
    command = next(line for line in printed.splitlines() if "experiment.yaml parallel.devices=" in line)
    changes = command.partition("experiment.yaml ")[2].split()
    parallel = read_experiment(tmp_path / "experiment.yaml", changes).experiment.parallel
    assert (parallel.devices, parallel.device, parallel.sharding) == (2, "cpu", "none")


def wrong(**keys: Any) -> str:
    return yaml.safe_dump({"distributed_type": "MULTI_GPU", "num_processes": 2, **keys})


MISTAKES = {
    "no processes": (wrong(num_processes=-1), "num_processes: is -1, which leaves the number of processes to"),
    "no number": (wrong(num_processes="eight"), "num_processes: should be a whole number, at least 1 (found 'eight')"),
    "half a process": (wrong(num_processes=1.5), "num_processes: should be a whole number, at least 1 (found 1.5)"),
    "true": (wrong(num_processes=True), "num_processes: should be a whole number, at least 1 (found true)"),
    "odd machines": (wrong(num_machines=3), "num_processes: 2 processes cannot be shared equally by 3 machines"),
    "type": (wrong(distributed_type="MULTI_GPUS"), "distributed_type: 'MULTI_GPUS' is not one of NO, MPS, MULTI_GPU"),
    "precision": (wrong(mixed_precision="bf61"), "mixed_precision: 'bf61' is not one of no, fp16, bf16, fp8."),
    "yes or no": (wrong(use_cpu="maybe"), "use_cpu: should be true or false (found 'maybe')"),
    "section": (wrong(distributed_type="FSDP", fsdp_config="FULL_SHARD"), "fsdp_config: should be a section"),
    "strategy": (
        wrong(distributed_type="FSDP", fsdp_config={"fsdp_sharding_strategy": "FUL_SHARD"}),
        "HYBRID_SHARD, HYBRID_SHARD_ZERO2, 1, 2, 3, 4, 5. Did you mean 'FULL_SHARD'?",
    ),
    "version": (
        wrong(distributed_type="FSDP", fsdp_config={"fsdp_version": 3}),
        "fsdp_config.fsdp_version: 3 is not one of 1, 2.",
    ),
    "sizes": (
        wrong(
            distributed_type="FSDP",
            fsdp_config={"fsdp_version": 2},
            parallelism_config={"parallelism_config_dp_shard_size": 4},
        ),
        "parallelism_config: 1 x 4 x 1 devices are not the 2 of num_processes",
    ),
    "twice": (
        wrong(distributed_type="FSDP", fsdp_config={"fsdp_version": 1, "version": 2}),
        "fsdp_config.version: it is there twice, once as fsdp_config.fsdp_version",
    ),
    "stage": (
        wrong(distributed_type="DEEPSPEED", deepspeed_config={"zero_stage": 4}),
        "deepspeed_config.zero_stage: 4 is not one of 0, 1, 2, 3",
    ),
    "accumulation": (
        wrong(distributed_type="DEEPSPEED", deepspeed_config={"gradient_accumulation_steps": 0}),
        "deepspeed_config.gradient_accumulation_steps: should be a whole number, at least 1 (found 0)",
    ),
    "no JSON": (
        wrong(distributed_type="DEEPSPEED", deepspeed_config={"deepspeed_config_file": "nowhere.json"}),
        "deepspeed_config.deepspeed_config_file: nowhere.json does not exist, also not beside config.yaml",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_file_and_its_key(name: str, foretune: Foretune, tmp_path: Path) -> None:
    text, words = MISTAKES[name]
    (tmp_path / "config.yaml").write_text(text)
    answer = foretune("import-accelerate", "config.yaml")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("Error: config.yaml has 1 mistake:\n  1. ")
    assert words in answer.stderr


def test_all_mistakes_are_reported_at_once(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(wrong(num_processes=0, mixed_precision="half", use_cpu=7))
    answer = foretune("import-accelerate", "config.yaml")
    assert "config.yaml has 3 mistakes" in answer.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"stage": 5}}, "ds.json: zero_optimization.stage: 5 is not one of 0, 1, 2, 3"),
        ({"zero_optimization": True}, 'ds.json: zero_optimization: should be a section, such as {"stage": 2}'),
        (
            {"zero_optimization": {"stage": 2}, "train_batch_size": 9, "train_micro_batch_size_per_gpu": 2},
            "ds.json: train_batch_size: 9 is not 2 x 4 (samples per device x accumulation x devices). Write 8",
        ),
        (
            {"zero_optimization": {"stage": 2}, "train_batch_size": 6},
            "ds.json: train_batch_size: 6 samples cannot be shared equally by 4 passes",
        ),
        (
            {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}},
            "ds.json: optimizer.params.betas: should be two numbers from 0 to 1",
        ),
    ],
)
def test_mistakes_in_a_deepspeed_file(content: dict[str, Any], words: str, foretune: Foretune, tmp_path: Path) -> None:
    write_deepspeed(tmp_path / "config.yaml", content)
    answer = foretune("import-accelerate", "config.yaml")
    assert answer.returncode == 2
    assert words in answer.stderr


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_deepspeed_file_that_is_not_a_json_object(content: str, foretune: Foretune, tmp_path: Path) -> None:
    write_deepspeed(tmp_path / "config.yaml", {})
    (tmp_path / "ds.json").write_text(content)
    answer = foretune("import-accelerate", "config.yaml")
    assert answer.returncode == 2
    assert "deepspeed_config.deepspeed_config_file: ds.json " in answer.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("model: flux.1-dev\ntrain: {steps: 1}\n", "config.yaml has no key `distributed_type`, so it is not a file"),
        ('{"zero_optimization": {"stage": 2}}', "config.yaml is a DeepSpeed config. Name it in an accelerate config"),
        ("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n", "Foretune starts no jobs at Amazon"),
        ("- 1\n", "config.yaml should hold keys and values, such as `distributed_type: MULTI_GPU`"),
        ("a: [", "config.yaml cannot be read as YAML: line 1"),
        ("debug: false\ndebug: false\n", "the key 'debug' stands twice"),
        ("a: &a [x]\n" + "b: *a\n" * 1_100_000, "at most 1.00 MiB are read"),
    ],
)
def test_another_file(content: str, words: str, foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(content)
    answer = foretune("import-accelerate", "config.yaml")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert words in answer.stderr


def test_no_file(foretune: Foretune) -> None:
    answer = foretune("import-accelerate", "nowhere.yaml")
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: nowhere.yaml does not exist. By default, `accelerate config` writes ")


def test_a_deepspeed_file_is_also_found_where_accelerate_looks(foretune: Foretune, tmp_path: Path) -> None:
    """It is named from the folder where accelerate is started."""
    (tmp_path / "configs").mkdir()
    write_deepspeed(tmp_path / "configs" / "config.yaml", {"zero_optimization": {"stage": 0}})
    (tmp_path / "configs" / "ds.json").rename(tmp_path / "ds.json")
    answer = foretune("import-accelerate", "configs/config.yaml")
    assert answer.returncode == 0, answer.stderr
    assert "sharding: none" in answer.stdout


def test_an_unknown_key_is_named_with_what_was_probably_meant(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(wrong(mixed_precison="bf16", nothing_like_it=1))
    answer = foretune("import-accelerate", "config.yaml")
    assert answer.returncode == 0
    assert "#   mixed_precison: bf16 -> Did you mean 'mixed_precision'?\n" in answer.stdout
    assert "mixed_precison, nothing_like_it" in answer.stderr
