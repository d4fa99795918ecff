"""Every key of an accelerate config is answered, and what it becomes is an experiment that is accepted."""

import copy
import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, write_basic_config
from accelerate.utils.constants import FSDP_SHARDING_STRATEGY

import foretune as ft
from foretune.api.start import overrides_of
from foretune.choices.capabilities import objections
from foretune.config.overrides import apply_overrides
from foretune.config.reading import understand
from tests.config.accelerate_files import (
    EXPERIMENT,
    FSDP1,
    FSDP2,
    MEGATRON,
    OFFLOADED,
    SHARDED,
    answers,
    deepspeed,
    merged,
    sizes,
    write_config,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "default_config.yaml"


def keys_in(mapping: dict[str, Any]) -> set[str]:
    """Keys of a file, those of sections with the section before them."""
    sections = {name: value for name, value in mapping.items() if name.endswith("_config") and value}
    inner = {f"{name}.{key}" for name, section in sections.items() for key in section}
    return inner | (set(mapping) - set(sections))


def fsdp(**changes: Any) -> dict[str, Any]:
    version = FSDP2 if changes.get("fsdp_version") == 2 else FSDP1
    return {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {**version, **changes}}


CHECKPOINTED = {"levers.gradient_checkpointing": 1.0}
DYNAMO = {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default", "dynamo_use_fullgraph": False}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one process": ({}, {"parallel.devices": 1, "train.precision": "fp32"}),
    "one process on a CPU": ({"use_cpu": True}, {"parallel.device": "cpu"}),
    "one process, whatever the number": ({"num_processes": 4}, {"parallel.devices": 1}),
    "several GPUs": (
        {"distributed_type": "MULTI_GPU", "num_processes": 8, "mixed_precision": "bf16", "gpu_ids": "all"},
        {"parallel.devices": 8, "parallel.sharding": "none", "train.precision": "bf16"},
    ),
    "several GPUs in fp16": (
        {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "fp16"},
        {"train.precision": "fp16"},
    ),
    "several CPUs": (
        {"distributed_type": "MULTI_CPU", "num_processes": 4, "use_cpu": True},
        {"parallel.devices": 4, "parallel.device": "cpu", "parallel.sharding": "none"},
    ),
    "compiled": (
        {"mixed_precision": "bf16", "dynamo_config": DYNAMO},
        {"levers.compile": "regional", "train.precision": "bf16"},
    ),
    "compiled in fp32, which accelerate makes TF32": ({"dynamo_config": DYNAMO}, {"train.precision": "tf32"}),
    "compiled in fp32 on a CPU": ({"dynamo_config": DYNAMO, "use_cpu": True}, {"train.precision": "fp32"}),
    "fp8": (
        {"mixed_precision": "fp8", "fp8_config": {"backend": "AO", "pad_inner_dim": True}},
        {"train.precision": "bf16", "quantize.denoiser": "float8-training"},
    ),
    "FSDP 1": (fsdp(), SHARDED),
    "FSDP 2": (fsdp(fsdp_version=2), SHARDED),
    "FSDP 2 that keeps gathered weights": (fsdp(fsdp_version=2, fsdp_reshard_after_forward=False), SHARDED),
    "FSDP in fp16": ({**fsdp(), "mixed_precision": "fp16"}, {**SHARDED, "train.precision": "bf16"}),
    "FSDP in fp8": ({**fsdp(fsdp_version=2), "mixed_precision": "fp8"}, {**SHARDED, "train.precision": "bf16"}),
    "FSDP on one device": ({**fsdp(), "num_processes": 1}, {"parallel.devices": 1}),
    "FSDP with checkpointing": (fsdp(fsdp_activation_checkpointing=True), {**SHARDED, **CHECKPOINTED}),
    "FSDP with offload": (fsdp(fsdp_offload_params=True), SHARDED),
    "FSDP with offload on one device": (
        {**fsdp(fsdp_offload_params=True), "num_processes": 1},
        {"levers.optimizer_offload": True},
    ),
    "FSDP with offloaded activations": (
        fsdp(fsdp_version=2, fsdp_activation_checkpointing=True, fsdp_activation_checkpointing_offload=True),
        {**SHARDED, **CHECKPOINTED},
    ),
    "HSDP by sizes": (
        {**fsdp(fsdp_version=2), "parallelism_config": sizes(dp_replicate_size=2, dp_shard_size=4)},
        {"parallel.sharding": "hybrid", "parallel.shard_devices": 4},
    ),
    "sizes of FSDP": ({**fsdp(fsdp_version=2), "parallelism_config": sizes(dp_shard_size=8)}, SHARDED),
    "tensor and context parallelism": (
        {**fsdp(fsdp_version=2), "parallelism_config": sizes(dp_shard_size=2, tp_size=2, cp_size=2)},
        SHARDED,
    ),
    "ZeRO-0": (deepspeed(zero_stage=0), {"parallel.devices": 8, "parallel.sharding": "none"}),
    "ZeRO-1": (deepspeed(zero_stage=1), SHARDED),
    "ZeRO-2 with offload": (deepspeed(zero_stage=2, **OFFLOADED), SHARDED),
    "ZeRO-2 with offload on one device": (
        deepspeed(1, zero_stage=2, **OFFLOADED),
        {"parallel.devices": 1, "levers.optimizer_offload": True},
    ),
    "ZeRO-3": (deepspeed(zero_stage=3, zero3_save_16bit_model=True), SHARDED),
    "ZeRO-3 to NVMe": (
        deepspeed(
            zero_stage=3,
            offload_optimizer_device="nvme",
            offload_param_device="nvme",
            offload_optimizer_nvme_path="/nvme",
            offload_param_nvme_path="/nvme",
        ),
        SHARDED,
    ),
    "ZeRO without a stage, which is 2": (deepspeed(), SHARDED),
    "accumulation and clipping": (
        deepspeed(zero_stage=2, gradient_accumulation_steps=4, gradient_clipping=0.5),
        {"train.gradient_accumulation": 4, "train.max_grad_norm": 0.5},
    ),
    "clipping by 0, which is none": (deepspeed(zero_stage=2, gradient_clipping=0.0), {"train.max_grad_norm": None}),
    "Megatron-LM": (
        {"distributed_type": "MEGATRON_LM", "num_processes": 8, "megatron_lm_config": MEGATRON},
        {**SHARDED, **CHECKPOINTED, "train.gradient_accumulation": 4, "train.max_grad_norm": 0.5},
    ),
    "TPUs": ({"distributed_type": "XLA", "num_processes": 8, "tpu_name": "pod"}, {"parallel.devices": 8}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_an_experiment_that_is_accepted(name: str, file: Path) -> None:
    changes, settings = CASES[name]
    imported = ft.import_accelerate(write_config(file, **changes))
    assert settings.items() <= imported.settings.items()
    assert "levers.activation_offload" not in imported.settings, "not with sharding"
    asked = merged(imported)
    for setting, value in imported.settings.items():
        section, key = setting.split(".")
        found = getattr(getattr(asked.experiment, section), key)
        assert found == value or list(found) == value
    if name != "one process, whatever the number":
        assert asked.experiment.parallel.devices == changes.get("num_processes", 1)


@pytest.mark.parametrize("name", CASES)
def test_every_key_is_answered_once_and_none_is_unknown(name: str, file: Path) -> None:
    imported = ft.import_accelerate(write_config(file, **CASES[name][0]))
    written = yaml.safe_load(file.read_text())
    assert sorted(answer.key for answer in imported.keys) == sorted(keys_in(written))
    assert [answer for answer in imported.keys if answer.outcome == "unknown"] == []
    assert all(answer.text for answer in imported.keys)
    for answer in imported.keys:
        assert answer.key in imported.yaml
        assert answer.outcome != "not supported" or "Nearest" in answer.text, answer


@pytest.mark.parametrize("name", CASES)
def test_settings_are_changes_that_the_api_takes(name: str, file: Path) -> None:
    """`ft.train(experiment, imported.settings)`: as text on a command line they mean the same."""
    imported = ft.import_accelerate(write_config(file, **CASES[name][0]))
    changed = apply_overrides(EXPERIMENT, overrides_of(imported.settings))
    assert understand(changed, source=None).experiment == merged(imported).experiment
    command = next(line for line in imported.yaml.splitlines() if "experiment.yaml parallel.devices=" in line)
    words = shlex.split(command.removeprefix("#   "))
    typed = words[words.index("experiment.yaml") + 1 :]
    assert apply_overrides(EXPERIMENT, typed) == changed


def test_every_key_that_accelerate_knows_is_known(file: Path) -> None:
    """Fields of its config, and the options of `accelerate launch` that the sections are copied to."""
    prefixes = {
        "fsdp_config": "fsdp_",
        "deepspeed_config": ("zero", "offload_", "gradient_", "deepspeed_"),
        "megatron_lm_config": "megatron_lm_",
        "dynamo_config": "dynamo_",
        "fp8_config": "fp8_",
        "parallelism_config": "parallelism_config_",
        "mpirun_config": "mpirun_",
    }
    options = vars(launch_command_parser().parse_args(["script.py"]))
    unknown = []
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        lines = [f"distributed_type: {kind}", "num_processes: 2", "mixed_precision: fp8"]
        fields = {field.name for field in dataclasses.fields(ClusterConfig)} - set(prefixes)
        lines += [f"{name}: null" for name in sorted(fields - {"distributed_type", "num_processes", "mixed_precision"})]
        for section, prefix in prefixes.items():
            names = [name for name in options if name.startswith(prefix)]
            assert names, section
            lines += [f"{section}:", *(f"  {name}: null" for name in names)]
        file.write_text("\n".join(lines), encoding="utf-8")
        found = ft.import_accelerate(file)
        unknown += [answer.key for answer in found.keys if answer.outcome == "unknown"]
        assert len(found.keys) > 100
    assert unknown == []


@pytest.mark.parametrize("kind", [kind.value for kind in DistributedType])
def test_every_type_of_accelerate_is_answered(kind: str, file: Path) -> None:
    imported = ft.import_accelerate(write_config(file, distributed_type=kind, num_processes=2))
    assert merged(imported).experiment.parallel.devices == (1 if kind == "NO" else 2)
    answer = answers(imported)["distributed_type"]
    known = kind in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED")
    assert answer.outcome == ("translated" if known else "not supported")


@pytest.mark.parametrize("precision", ["no", "fp16", "bf16", "fp8"])
def test_the_basic_config(precision: str, file: Path) -> None:
    """`accelerate config default`, whose file is JSON whatever it is called."""
    assert write_basic_config(mixed_precision=precision, save_location=str(file))
    imported = ft.import_accelerate(file)
    expected = {"no": "fp32", "fp8": "bf16"}.get(precision, precision)
    assert merged(imported).experiment.train.precision == expected
    assert imported.unsupported == ()


STRATEGIES = {
    "FULL_SHARD": ("full", "full"),
    "SHARD_GRAD_OP": ("full", "full"),
    "NO_SHARD": ("none", "none"),
    "HYBRID_SHARD": ("full", "hybrid"),
    "HYBRID_SHARD_ZERO2": ("full", "hybrid"),
}


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("key", ["fsdp_sharding_strategy", "fsdp_reshard_after_forward"])
@pytest.mark.parametrize("strategy", FSDP_SHARDING_STRATEGY)
def test_strategies_of_fsdp_1(strategy: str, key: str, machines: int, file: Path) -> None:
    asked = {**{name: value for name, value in FSDP1.items() if name != "fsdp_reshard_after_forward"}, key: strategy}
    where = {"distributed_type": "FSDP", "num_processes": 16, "num_machines": machines, "fsdp_config": asked}
    number = FSDP_SHARDING_STRATEGY.index(strategy) + 1
    sharding = STRATEGIES[strategy][machines - 1]
    for value in (strategy, strategy.lower(), str(number), number):
        write_config(file, **{**where, "fsdp_config": {**asked, key: value}})
        imported = ft.import_accelerate(file)
        assert imported.settings["parallel.sharding"] == sharding
        assert imported.settings.get("parallel.shard_devices") == (8 if sharding == "hybrid" else None)
        merged(imported)
        keeps = any("keeps gathered weights" in sentence for sentence in imported.found.differs)
        assert keeps == (strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"))
        assert any("inside each group" in sentence for sentence in imported.found.same) == (sharding == "hybrid")


@pytest.mark.parametrize("reshards", [True, False])
def test_version_2_says_whether_gathered_weights_are_kept(reshards: bool, file: Path) -> None:
    asked = fsdp(fsdp_version=2, fsdp_reshard_after_forward=reshards)
    differs = ft.import_accelerate(write_config(file, **asked)).found.differs
    assert any("keeps gathered weights" in sentence for sentence in differs) != reshards


def test_hybrid_sharding_with_one_device_per_machine_is_ddp(file: Path) -> None:
    where = {"num_processes": 4, "num_machines": 4, "main_process_ip": "node-0", "main_process_port": 29600}
    imported = ft.import_accelerate(write_config(file, **{**fsdp(fsdp_reshard_after_forward="HYBRID_SHARD"), **where}))
    assert imported.settings["parallel.sharding"] == "none"
    assert "parallel.shard_devices" not in imported.settings


def test_several_machines_are_a_command_of_torchrun(file: Path) -> None:
    where = {"num_processes": 16, "num_machines": 2, "main_process_ip": "10.0.0.1", "main_process_port": 29501}
    imported = ft.import_accelerate(write_config(file, distributed_type="MULTI_GPU", machine_rank=1, **where))
    command = (
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29501 "
        "-m foretune train experiment.yaml"
    )
    assert imported.found.start == command
    assert f"# Start, on each of the 2 machines:\n#   {command}\n" in imported.yaml
    outcomes = {key: answer.outcome for key, answer in answers(imported).items()}
    assert (outcomes["num_machines"], outcomes["main_process_ip"]) == ("translated", "translated")
    assert (outcomes["machine_rank"], outcomes["rdzv_backend"]) == ("not needed", "not needed")


def test_chosen_gpus_are_a_variable(file: Path) -> None:
    imported = ft.import_accelerate(write_config(file, distributed_type="MULTI_GPU", num_processes=2, gpu_ids="0, 3"))
    assert imported.found.start == "CUDA_VISIBLE_DEVICES=0,3 foretune train experiment.yaml"


def test_parallelism_inside_a_sample_changes_the_global_batch_which_is_said(file: Path) -> None:
    for changes in (CASES["tensor and context parallelism"][0], CASES["Megatron-LM"][0]):
        imported = ft.import_accelerate(write_config(file, **changes))
        assert any("4 times as large" in sentence for sentence in imported.found.differs)


def test_sections_that_accelerate_does_not_read_change_nothing(file: Path) -> None:
    idle = {"fsdp_config": {**FSDP1, "fsdp_activation_checkpointing": True}, "deepspeed_config": {"zero_stage": 3}}
    imported = ft.import_accelerate(write_config(file, distributed_type="MULTI_GPU", num_processes=2, **idle))
    assert imported.settings == {"parallel.devices": 2, "parallel.sharding": "none", "train.precision": "fp32"}
    assert answers(imported)["fsdp_config.fsdp_version"].outcome == "not needed"


OLD_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "0.11": (
        """
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: 'NO'
fsdp_config: {}
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
num_machines: 1
num_processes: 1
fp16: true
use_cpu: false
dynamo_backend: 'NO'
""",
        {"parallel.devices": 1, "train.precision": "fp16"},
    ),
    "short names in sections": (
        """
distributed_type: FSDP
num_processes: 4
mixed_precision: bf16
fsdp_config: {sharding_strategy: 4, offload_params: false, min_num_params: 2000}
dynamo_config: {backend: inductor}
""",
        {"parallel.devices": 4, "parallel.sharding": "full", "train.precision": "bf16", "levers.compile": "regional"},
    ),
    "words without quotes": (
        """
distributed_type: NO
mixed_precision: no
use_cpu: yes
downcast_bf16: no
""",
        {"parallel.devices": 1, "parallel.device": "cpu", "train.precision": "fp32"},
    ),
    "switches as words": (
        """
distributed_type: FSDP
num_processes: 4
fsdp_config: {fsdp_activation_checkpointing: off, fsdp_offload_params: "False", fsdp_version: "2"}
""",
        {"parallel.sharding": "full", "train.precision": "fp32"},
    ),
    "JSON made of YAML 1.1, in which NO is false": (
        '{"distributed_type": false, "mixed_precision": false, "use_cpu": true}',
        {"parallel.devices": 1, "train.precision": "fp32"},
    ),
    "Apple": ("distributed_type: MPS\nmixed_precision: 'no'", {"parallel.device": "mps", "train.precision": "fp32"}),
    "mpirun": (
        """
distributed_type: MULTI_CPU
num_processes: 4
mixed_precision: 'no'
ipex_config: {ipex: true}
mpirun_config: {mpirun_ccl: '1', mpirun_hostfile: hosts}
""",
        {"parallel.devices": 4, "parallel.device": "cpu"},
    ),
}


@pytest.mark.parametrize("name", OLD_FILES)
def test_files_of_earlier_versions_and_by_hand(name: str, file: Path) -> None:
    text, settings = OLD_FILES[name]
    file.write_text(text, encoding="utf-8")
    imported = ft.import_accelerate(file)
    assert settings.items() <= imported.settings.items()
    assert [setting for setting in imported.settings if setting.startswith("levers.") and setting not in settings] == []
    assert [answer.key for answer in imported.keys if answer.outcome == "unknown"] == []
    merged(imported)


def test_accelerate_reads_the_files_of_these_tests(file: Path) -> None:
    """What is imported here is what accelerate itself would take."""
    for changes, _ in CASES.values():
        loaded = load_config_from_file(str(write_config(file, **changes)))
        assert loaded.num_processes == changes.get("num_processes", 1)


def test_what_is_set_is_refused_by_no_family(file: Path) -> None:
    """The check that `merged` makes for one model, for the others."""
    for changes, _ in CASES.values():
        experiment = merged(ft.import_accelerate(write_config(file, **changes))).experiment
        for family in ("ddpm", "sd3", "flux"):
            found = objections(experiment, family, distilled=None)
            assert [one.text for one in found if one.severity == "refused"] == []


def test_the_text_of_a_file_cannot_leave_its_comment(file: Path) -> None:
    file.write_text(
        'distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2\nmain_process_ip: "a;b\\nsave: {every: 1}"\n'
        '"x\\nparallel: {devices: 9}\\e[2K": "y\\ntrain: {steps: 1}"\ntpu_env: [TOKEN=secret]\n',
        encoding="utf-8",
    )
    imported = ft.import_accelerate(file)
    sections = yaml.safe_load(imported.yaml)
    assert set(sections) == {"parallel", "train"}
    assert sections["parallel"]["devices"] == 2
    assert "\x1b" not in imported.yaml, "nothing moves a terminal's cursor"
    assert "secret" not in imported.yaml
    assert "--rdzv-endpoint 'a;b" in imported.yaml, "a shell takes it as one word"


JUNK = (None, True, "auto", -1, 1.5, 10**30, [1], {"a": 1})


@pytest.mark.parametrize("name", ["HSDP by sizes", "ZeRO-2 with offload", "Megatron-LM"])
def test_any_value_of_any_key_is_answered_or_refused(name: str, file: Path) -> None:
    mapping = yaml.safe_load(write_config(file, **CASES[name][0]).read_text())
    places = [(key,) for key in mapping] + [
        (key, one) for key, value in mapping.items() if isinstance(value, dict) for one in value
    ]
    num_answered, refused = 0, []
    for *section, key in places:
        for value in JUNK:
            changed = copy.deepcopy(mapping)
            (changed[section[0]] if section else changed)[key] = value
            file.write_text(json.dumps(changed), encoding="utf-8")
            try:
                imported = ft.import_accelerate(file)
            except ft.UserError as error:
                refused.append((key, str(error)))
                continue
            num_answered += 1
            assert {answer.key for answer in imported.keys} == keys_in(changed)
            yaml.safe_load(imported.yaml)
    assert num_answered > len(places)
    assert refused
    assert [one for one in refused if not re.search(rf"{one[0]}|num_processes", one[1])] == []
