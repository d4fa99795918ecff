"""Configurations that no experiment can be like, and those with mistakes: each with its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretune.config.from_trainers.detecting import find
from foretune.config.from_trainers.importing import translate
from foretune.core.errors import ExperimentErrors, Refused, UserError
from tests.config.from_trainers.samples import SAMPLES, Sample, job

FIRST = {program: next(one for one in SAMPLES if one.program == program) for program in
         ("simpletuner", "ai-toolkit", "sd-scripts", "onetrainer", "diffusers")}  # fmt: skip
FLUX_LINE = "accelerate launch train_dreambooth_lora_flux.py --max_train_steps=1 --instance_data_dir=a"

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("simpletuner", {"controlnet": True}, "controlnet: ControlNets cannot be trained here"),
    ("simpletuner", {"model_family": "ace_step"}, "'ace_step' are not in the catalogue"),
    ("simpletuner", {"model_flavour": "kontext"}, "pairs of images"),
    ("simpletuner", {"model_flavour": "nano"}, "nano: it is not in the catalogue"),
    ("simpletuner", {"distillation_method": "dcm"}, "distillation from a teacher"),
    ("simpletuner", {"train_text_encoder": True}, "text encoders cannot be trained here"),
    ("ai-toolkit", {"type": "slider"}, "type: the process 'slider' is no training"),
    ("ai-toolkit", {"type": "textual_inversion_trainer"}, "textual inversion trains words"),
    ("ai-toolkit", {"adapter": {"type": "ip"}}, "adapter.type: adapters of the kinds IP-Adapter"),
    ("ai-toolkit", {"train.diff_output_preservation": True}, "prior preservation is not supported"),
    ("ai-toolkit", {"datasets": [{"folder_path": "a", "control_path": "b"}]},
     "datasets.0.control_path: it trains on pairs"),
    ("ai-toolkit", {"datasets": [{"folder_path": "a", "is_reg": True}]}, "datasets.0.is_reg: prior preservation"),
    ("ai-toolkit", {"model.arch": "omnigen2"}, "'omnigen2' are not in the catalogue"),
    ("ai-toolkit", {"model.name_or_path": "ostris/Flex.1-alpha"}, "Flex.1-alpha is not in the catalogue"),
    ("ai-toolkit", {"network.type": "lorm"}, "there is no adapter of the kind 'lorm'"),
    ("sd-scripts", {"reg_data_dir": "classes"}, "reg_data_dir: prior preservation is not supported"),
    ("sd-scripts", {"token_string": "zwx"}, "textual inversion trains words"),
    ("sd-scripts", {"cond_emb_dim": 32}, "ControlNets cannot be trained here"),
    ("sd-scripts", {"network_module": "networks.lora_anima"}, "its models are not in the catalogue"),
    ("sd-scripts", {"network_train_text_encoder_only": True}, "text encoders cannot be trained here"),
    ("onetrainer", {"training_method": "EMBEDDING"}, "textual inversion trains words"),
    ("onetrainer", {"model_type": "WUERSTCHEN_2"}, "'WUERSTCHEN_2' are not in the catalogue"),
    ("onetrainer", {"peft_type": "GLORA"}, "there is no adapter of the kind GLORA"),
    ("onetrainer", {"concepts": [{"path": "a", "type": "PRIOR_PREDICTION"}]}, "prior preservation is not supported"),
    ("diffusers", {"with_prior_preservation": True}, "prior preservation trains two images for each"),
    ("diffusers", {"train_text_encoder_ti": True}, "textual inversion trains words"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "changes", "reason"), REFUSED)
def test_another_kind_of_training_is_refused(
    program: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused) as refused:
        translate(FIRST[program].write(tmp_path, changes))
    assert reason in str(refused.value)
    assert "that no experiment can express:\n  1. " in str(refused.value)


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("simpletuner", {"lora_rank": "many"}, "lora_rank: should be a whole number, at least 1 (found 'many')"),
    ("simpletuner", {"learning_rate": -1}, "learning_rate: should be a number, at least 0 (found -1)"),
    ("simpletuner", {"gradient_checkpointing": "perhaps"}, "gradient_checkpointing: should be true or false"),
    ("simpletuner", {"max_train_steps": 0, "num_train_epochs": 0}, "max_train_steps: should be more than 0"),
    ("simpletuner", {"model_family": ["flux"]}, "model_family: should be text (found [flux])"),
    ("simpletuner", {"model_type": "lore"}, "model_type: 'lore' is not one of full, lora. Did you mean 'lora'?"),
    ("ai-toolkit", {"train.steps": 1.5}, "train.steps: should be a whole number"),
    ("ai-toolkit", {"datasets": [{"resolution": [512, "x"]}]}, "datasets.0.resolution: should be pixels, or a list"),
    ("sd-scripts", {"resolution": "big"}, "resolution: should be a side in pixels"),
    ("sd-scripts", {"mixed_precision": "fp16", "full_bf16": True}, "full_bf16: goes with mixed_precision bf16"),
    ("onetrainer", {"resolution": "1k"}, "resolution: should be pixels, such as 512 or 768x512"),
    ("onetrainer", {"batch_size": True}, "batch_size: should be a whole number, at least 1 (found true)"),
    ("diffusers", {"rank": "0"}, "rank: should be a whole number, at least 1 (found '0')"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "changes", "mistake"), MISTAKES)
def test_a_mistake_is_named(program: str, changes: dict[str, Any], mistake: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentErrors) as found:
        translate(FIRST[program].write(tmp_path, changes))
    assert any(problem.startswith(mistake) for problem in found.value.problems), found.value.problems


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    path = FIRST["simpletuner"].write(tmp_path, {"lora_rank": "x", "seed": -1, "use_ema": "maybe"})
    with pytest.raises(ExperimentErrors) as found:
        translate(path)
    assert len(found.value.problems) == 3


SCRIPTS = {
    "train_controlnet_flux": "ControlNets cannot be trained here",
    "train_dreambooth_lora_flux_kontext": "pairs of images",
    "train_dreambooth_flax": "it runs in JAX, not torch",
    "train_instruct_pix2pix": "pairs of images",
    "train_diffusion_dpo": "training from preferences",
    "train_vqgan": "autoencoders cannot be trained here",
    "train_something_new": "what train_something_new trains is not known here",
    "sdxl_train_control_net": "ControlNets cannot be trained here",
    "anima_train_network": "its models are not in the catalogue",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_trains_something_else_is_refused(script: str, tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(f"accelerate launch --mixed_precision=fp16 {script}.py --output_name=x --max_train_steps=2\n")
    with pytest.raises(Refused, match=SCRIPTS[script]):
        translate(path)


def test_combinations_that_do_not_work_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = FIRST["simpletuner"].write(tmp_path, {"musubi_blocks_to_swap": 4, "gradient_checkpointing": False})
    with pytest.raises(Refused, match=r"1\. levers\.block_swap: a block that is not checkpointed"):
        translate(path)


def test_a_toml_file_that_does_not_tell_its_script_asks_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text(
        'optimizer_type = "AdamW"\nlearning_rate = 1e-4\nmax_train_steps = 4\nnetwork_module="networks.lora"\n'
    )
    with pytest.raises(
        Refused, match=r"does not tell which script it is for\. Name the model: foretune plan FILE model="
    ):
        translate(path)
    found = translate(path, model="sdxl-unet")
    assert found.model == found.mapping["model"] == "sdxl-unet"


def test_a_dataset_config_is_no_training(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    path.write_text('[[datasets]]\nresolution = 512\n[[datasets.subsets]]\nimage_dir = "a"\n')
    with pytest.raises(Refused, match=r"this is a dataset config\. Name it in the options: dataset_config"):
        translate(path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"model_family": "flux",}', "cannot be read as JSON"),
        ("a.json", "[" * 100_000, "cannot be read as JSON"),
        ("a.toml", "a = ", "cannot be read as TOML"),
        ("a.yaml", "config: [", "cannot be read as YAML"),
        ("a.yaml", "model: flux.1-dev\n", "is no configuration of a trainer that is known here. Known: SimpleTuner: "),
        ("a.sh", "echo train_dreambooth_lora_flux.py\n", "is no configuration of a trainer"),
        ("a.json", '{"a": "' + "b" * 2**20 + '"}', "at most 1.00 MiB are read"),
        ("a.png", "model_family", "is no configuration of a trainer"),
    ],
)
def test_another_file(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as found:
        translate(path)
    assert words in str(found.value)


def test_files_are_read_in_the_folder_of_the_configuration_only(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    backends = [{"id": "a", "type": "local", "instance_data_dir": "/pictures", "resolution": 768, "repeats": 2}]
    (tmp_path / "backends.json").write_text(json.dumps(backends))
    sample = FIRST["simpletuner"]
    path = sample.write(inner, {"data_backend_config": "../backends.json"})
    assert translate(path).mapping["data"]["path"] == "./data"
    (inner / "backends.json").symlink_to(tmp_path / "backends.json")
    with pytest.raises(UserError, match="outside of"):
        translate(path)
    (inner / "backends.json").unlink()
    (inner / "backends.json").write_text(json.dumps(backends))
    data = translate(path).mapping["data"]
    assert (data["path"], data["repeats"], data["resolution"]) == ("/pictures", 3, 768)
    assert "captions" not in data


@pytest.mark.parametrize(("strategies", "captions"), [(["filename"], "filename"), (["filename", "textfile"], None)])
def test_captions_in_file_names_stay_captions(strategies: list[str], captions: str | None, tmp_path: Path) -> None:
    backends = [
        {"id": str(number), "type": "local", "instance_data_dir": f"/pictures-{number}", "caption_strategy": strategy}
        for number, strategy in enumerate(strategies)
    ]
    (tmp_path / "backends.json").write_text(json.dumps(backends))
    path = FIRST["simpletuner"].write(tmp_path, {"data_backend_config": "backends.json"})
    assert translate(path).mapping["data"].get("captions") == captions


def test_the_datasets_of_sd_scripts_beside_the_options(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text(
        "[general]\nresolution = [768, 512]\n[[datasets]]\nbatch_size = 3\n"
        '[[datasets.subsets]]\nimage_dir = "a"\nnum_repeats = 2\n[[datasets.subsets]]\nimage_dir = "b"\n'
    )
    found = translate(
        FIRST["sd-scripts"].write(tmp_path, {"dataset_config": "somewhere/data.toml"}, without="resolution")
    )
    assert found.mapping["data"]["folders"] == [{"path": "a", "repeats": 2}, {"path": "b", "repeats": 1}]
    assert (found.mapping["data"]["resolution"], found.mapping["train"]["batch_size"]) == ("768x512", 3)
    (tmp_path / "data.toml").write_text('[[datasets]]\n[[datasets.subsets]]\nimage_dir="a"\nis_reg=true\n')
    with pytest.raises(Refused, match="prior preservation"):
        translate(tmp_path / "sdxl.toml")


def test_lycoris_and_concepts_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "lycoris.json").write_text(json.dumps({"algo": "lokr", "factor": 4, "linear_dim": 10000}))
    lokr = next(sample for sample in SAMPLES if sample.name == "simpletuner-lokr")
    method = translate(lokr.write(tmp_path)).mapping["method"]
    assert method == {"kind": "lokr", "factor": 4, "full_matrix": True}
    (tmp_path / "concepts.json").write_text(json.dumps([{"path": "/a"}, {"path": "/b"}]))
    data = translate(FIRST["onetrainer"].write(tmp_path, {"concept_file_name": "concepts.json"})).mapping["data"]
    assert [folder["path"] for folder in data["folders"]] == ["/a", "/b"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_each_program_is_recognised(sample: Sample, tmp_path: Path) -> None:
    found = find(sample.write(tmp_path))
    assert found is not None
    assert found.program.key == sample.program


def test_variables_continuations_and_comments_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(
        "#!/bin/bash\n# python train_dreambooth_lora_sd3.py --rank=2\nSTEPS=7\nexport "
        "NAME='black-forest-labs/FLUX.1-dev'\n"
        "accelerate launch \\\n  train_dreambooth_lora_flux.py \\\n  --pretrained_model_name_or_path=${NAME} \\\n"
        "  --max_train_steps $STEPS --rank=2 --rank=4 --instance_data_dir=$PICTURES --train_batch_size=1\n"
    )
    found = translate(path)
    assert (found.model, found.mapping["train"]["steps"], found.mapping["method"]["rank"]) == ("flux.1-dev", 7, 4)
    assert found.mapping["data"]["path"] == "./data"
    assert [answer.key for answer in found.keys_with("not supported")] == ["instance_data_dir"]


def test_nothing_in_a_command_is_run(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(f"{FLUX_LINE} --seed=$(touch {tmp_path}/ran) ; touch {tmp_path}/ran\n")
    with pytest.raises(ExperimentErrors, match="seed: should be a whole number"):
        translate(path)
    assert not (tmp_path / "ran").exists()


def test_of_several_processes_the_first_one_counts(tmp_path: Path) -> None:
    first = FIRST["ai-toolkit"].content
    assert not isinstance(first, str)
    content = job(first["config"]["process"][0])
    content["config"]["process"].append({"type": "sd_trainer"})
    (tmp_path / "two.json").write_text(json.dumps(content))
    assert translate(tmp_path / "two.json").model == "flux.1-dev"
