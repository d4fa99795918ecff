"""`foretune plan` and `foretune backtest` as one types them."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from foretune import catalog
from foretune.catalog.rows import DATA_DIR
from tests.cli.conftest import Foretune, environment
from tests.cli.test_colours import in_a_terminal
from tests.cli.test_start import HEAVY, imported
from tests.waiting import HANG_S

QUESTION = ("plan", "sd3-medium", "method.kind=lora", "--on", "rtx-3060,l4,h100-sxm")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TIMES = ("step", "whole job", "cost")
INSTALL = "pip install 'foretune[train]'"


def test_the_default_answer_fits_a_screen(foretune: Foretune) -> None:
    """A sentence with the verdict, a table, a menu; the rest is behind --explain."""
    answer = foretune(*QUESTION)
    assert (answer.returncode, answer.stderr) == (0, "")
    title, sentence, _, heading, *lines = answer.stdout.splitlines()
    settings = "gradient checkpointing on all blocks, gradient accumulation 4, batch 1, 1024 x"
    assert title.startswith(f"sd3-medium: LoRA rank 16, bf16, {settings}")
    assert sentence.startswith("Fits on l4, h100-sxm. Tight on rtx-3060.")
    headings = re.split(r"  +", heading.strip())
    assert [heading for heading in headings if heading not in TIMES] == [
        "device", "usable", "estimated", "low to high", "with validation", "verdict",
    ]  # fmt: skip
    rows = {line.split()[0]: line for line in lines[:3]}
    assert set(rows) == {"rtx-3060", "l4", "h100-sxm"}
    assert "~ tight" in rows["rtx-3060"]
    assert "+ fits" in rows["h100-sxm"]
    assert len(answer.stdout.splitlines()) <= 24
    assert all(len(line) <= 120 for line in answer.stdout.splitlines())
    assert "largest tensors" not in answer.stdout
    assert "caching latents" not in answer.stdout


def test_the_table_says_what_json_says(foretune: Foretune) -> None:
    shown = foretune(*QUESTION).stdout
    plans = json.loads(foretune(*QUESTION, "--json").stdout)
    assert [plan["device"] for plan in plans] == ["rtx-3060", "l4", "h100-sxm"]
    for plan in plans:
        line = next(line for line in shown.splitlines() if line.startswith(plan["device"] + " "))
        whole = max(plan["process_bytes"], plan["validation"]["process_bytes"])
        for figure in (plan["process_bytes"], plan["usable_bytes"], whole):
            assert f"{figure / 2**30:.1f} GiB" in line
        assert plan["verdict"] in line


def test_a_band_over_two_units_names_both(foretune: Foretune) -> None:
    line = next(
        line
        for line in foretune("plan", "ddpm-cifar10", "train.batch_size=1", "--on", "rtx-4090").stdout.splitlines()
        if line.startswith("rtx-4090")
    )
    assert re.search(r"\d MiB to \d+\.\d GiB ", line), line


def test_json_is_whole(foretune: Foretune) -> None:
    (plan,) = json.loads(foretune("plan", "sd3-medium", "--on", "l4", "--json").stdout)
    assert plan["format"] == "Plan"
    assert {"allocated_bytes", "reserved_bytes", "process_bytes", "phases", "remedies", "traces"} <= set(plan)
    assert plan["allocated_bytes"] <= plan["reserved_bytes"] <= plan["process_bytes"] <= plan["process_high_bytes"]


def test_an_explanation_breaks_figures_down(foretune: Foretune) -> None:
    shown = foretune(*QUESTION, "--explain").stdout
    for heading in ("part of the caching text", "largest tensors", "allocated", "reserved", "process"):
        assert heading in shown
    for phase in ("caching latents", "caching text", "loading", "training step", "validation", "saving"):
        assert any(line.startswith(phase) for line in shown.splitlines())
    assert any(line.startswith("Assumed: ") for line in shown.splitlines())
    assert "Trace: sd3-medium.lora.bf16.checkpointed " in shown
    shares = [float(found) for found in re.findall(r"(\d+(?:\.\d+)?) ?%", shown.partition("largest tensors")[0])]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_what_to_do_about_it(foretune: Foretune) -> None:
    wide = ("levers.gradient_checkpointing=0", "train.batch_size=8")
    shown = foretune("plan", "sd3-medium", *wide, "--on", "l4").stdout
    assert "Does not fit on l4: " in shown
    assert "To make it fit on l4:" in shown
    assert re.search(r"  1\. train\.batch_size=\d train\.gradient_accumulation=\d+  \([\d.]+ GiB\)", shown)
    assert "Same result: batches of" in shown


def test_memory_that_is_left_can_be_used(foretune: Foretune) -> None:
    shown = " ".join(foretune("plan", "sd3-medium", "--on", "h100-sxm").stdout.split())
    assert "To use the memory that is left:" in shown
    assert "levers.gradient_checkpointing=0" in shown
    assert re.search(r"levers\.gradient_checkpointing=0 .*?; -\d+ % step time\.", shown)
    assert "train.batch_size=4 train.gradient_accumulation=1" in shown


def test_a_page(foretune: Foretune, tmp_path: Path) -> None:
    answer = foretune(*QUESTION, "--html", "page.html")
    assert (answer.returncode, answer.stdout.splitlines()[-1]) == (0, "Wrote page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "sd3-medium" in page
    assert all(catalog.device(name).title in page for name in ("rtx-3060", "l4", "h100-sxm"))
    both = foretune(*QUESTION, "--json", "--html", "other.html")
    assert len(json.loads(both.stdout)) == 3
    assert (tmp_path / "other.html").is_file()


def test_a_file_and_a_change(foretune: Foretune, tmp_path: Path) -> None:
    assert foretune("init", "x.yaml", "--model", "sd3-medium").returncode == 0
    (plan,) = json.loads(foretune("plan", "x.yaml", "train.batch_size=2", "--on", "l4", "--json").stdout)
    assert plan["model"] == "sd3-medium"
    assert plan["sizes"]["batch_size"] == 2
    assert (tmp_path / "x.yaml").is_file()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("plan", "sd3-medum"), "sd3-medium"),
        (("plan", "sd3-medium", "--on", "rtx-4091"), "rtx-4090"),
        (("plan", "sd3-medium", "--on", ","), "--on rtx-4090"),
        (("plan", "sd3-medium", "train.batch_sice=2", "--on", "l4"), "batch_size"),
        (("plan", "sd3-medium", "train.batch_size", "--on", "l4"), "is not an override"),
        (("plan", "sd3-medium", "--on", "l4", "--height", "512"), "--width"),
        (("plan", "sd3-medium", "--on", "l4", "--height", "500", "--width", "512"), "multiples of 16 px"),
        (("plan", "sd3-medium", "--on", "l4", "--height", "8192", "--width", "8192"), "up to 3072 px"),
        (("plan", "sd3-medium", "--on", "l4", "--frames", "9"), "images, not videos"),
        (("plan", "nowhere.yaml", "--on", "l4"), "nowhere.yaml"),
        (("plan", "some/body", "--on", "l4"), "downloads nothing"),
        (("backtest", "--data", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_mistakes_are_said_in_a_sentence(foretune: Foretune, arguments: tuple[str, ...], part: str) -> None:
    answer = foretune(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("Error: ")
    assert part in answer.stderr
    assert "Traceback" not in answer.stderr


def test_names_as_people_type_them(foretune: Foretune) -> None:
    answer = foretune("plan", "SD3-Medium", "--on", "4090,24GiB", "--ram", "64GiB")
    assert answer.returncode == 0
    assert answer.stderr.splitlines() == [
        "Note: '4090' resolved to rtx-4090",
        "Note: 24GiB: any CUDA card with this memory on PCIe 4.0 x16",
    ]
    assert answer.stdout.startswith("sd3-medium: LoRA")
    (host,) = [line for line in answer.stdout.splitlines() if line.startswith("Host memory: ")]
    assert host.endswith(": fits")


def test_a_single_file_checkpoint_is_not_taken_for_an_experiment(foretune: Foretune, tmp_path: Path) -> None:
    file = tmp_path / "finetune.safetensors"
    file.write_bytes(bytes(2**21))
    answer = foretune("plan", str(file), "--on", "l4")
    assert answer.returncode == 2
    assert f"foretune import-checkpoint {file} --base MODEL" in answer.stderr


def test_a_model_that_cannot_be_trained_yet_says_so(foretune: Foretune) -> None:
    words = "Foretune does not train cogvideox models yet"
    assert words in foretune("plan", "cogvideox-2b", "--on", "l4").stdout
    assert "does not train" not in foretune("plan", "sd3-medium", "--on", "l4").stdout


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        (
            ("plan", "sd3.5", "method.rank=8", "--on", "l4"),
            ["foretune plan sd3.5-medium method.rank=8 --on l4", "foretune plan sd3.5-large method.rank=8 --on l4"],
        ),
        (
            ("plan", "sd3-medium", "--on=l4,3080"),
            ["foretune plan sd3-medium --on=l4,rtx-3080-10gb", "foretune plan sd3-medium --on=l4,rtx-3080-12gb"],
        ),
        (
            ("init", "x.yaml", "-m", "flux"),
            [f"foretune init x.yaml -m {name}" for name in ("flux.1-dev", "flux.1-schnell", "flux.2-dev")],
        ),
    ],
)
def test_an_ambiguous_name_is_answered_with_a_command_for_each(
    foretune_process: Foretune, arguments: tuple[str, ...], commands: list[str]
) -> None:
    answer = foretune_process(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    first, *lines = answer.stderr.splitlines()
    assert first.startswith("Error: ")
    assert [line.strip() for line in lines] == commands


def test_a_warning_about_a_card_is_a_value_and_a_line(foretune: Foretune) -> None:
    question = ("plan", "sd3-medium", "--on", "t4,l4")
    shown = foretune(*question).stdout
    assert "Warning: train.precision: t4 (Turing) has no bf16 units" in shown
    old, new = json.loads(foretune(*question, "--json").stdout)
    assert "train.precision=fp16" in old["warnings"][0]
    assert new["warnings"] == []


def test_all_models_but_those_that_refuse(foretune: Foretune, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small catalogue; `plan/test_asking.py` asks all models of the real one."""
    few = {name: catalog.denoisers()[name] for name in ("flux.1-dev", "flux.1-schnell", "sd3-medium")}
    monkeypatch.setattr(catalog, "denoisers", lambda: few)
    answer = foretune("plan", "all", "method.kind=full", "--on", "h100-sxm")
    assert answer.returncode == 0
    heading, *reasons = answer.stderr.splitlines()
    assert heading.startswith("Not planned: ")
    assert any("flux.1-schnell" in line and "distilled" in line for line in reasons)
    assert "flux.1-dev" in answer.stdout


def test_the_program_itself(foretune_process: Foretune) -> None:
    answer = foretune_process(*QUESTION)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\x1b" not in answer.stdout
    assert "+ fits" in answer.stdout


def test_colours_in_a_terminal_whose_owner_wants_them(tmp_path: Path) -> None:
    question = ("plan", "sd3-medium", "--on", "h100-sxm")
    assert "\x1b[32m+ fits" in in_a_terminal(tmp_path, *question)
    assert not COLOUR.search(in_a_terminal(tmp_path, *question, NO_COLOR="1"))


def test_nothing_heavy_is_imported_where_a_trace_answers() -> None:
    assert imported(HEAVY, *QUESTION) == []
    assert imported(HEAVY, *QUESTION, "--explain") == []


WITHOUT_TORCH = """
import sys
from importlib import util
from importlib.abc import MetaPathFinder

ABSENT = ('torch', 'diffusers', 'transformers', 'peft')
present = util.find_spec

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ABSENT:
            raise ModuleNotFoundError(name)

util.find_spec = lambda name, package=None: None if name in ABSENT else present(name, package)
sys.meta_path.insert(0, Absent())
from foretune.cli.main import main

sys.argv = ['foretune', *sys.argv[1:]]
main()
"""


def without_torch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_without_torch_shipped_traces_answer_and_others_name_what_to_install(tmp_path: Path) -> None:
    answered = without_torch(tmp_path, *QUESTION)
    assert (answered.returncode, answered.stderr) == (0, "")
    refused = without_torch(tmp_path, "plan", "sd3-medium", "method.targets=[to_q]", "--on", "l4")
    assert refused.returncode == 2
    assert INSTALL in refused.stderr
    live = without_torch(tmp_path, "plan", "sd3-medium", "--live", "--on", "l4")
    assert live.returncode == 2
    assert INSTALL in live.stderr


def some_rows(path: Path, *row_ids: str) -> Path:
    with (DATA_DIR / "published_measurements.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"] in row_ids]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_exam_on_another_file(foretune: Foretune, tmp_path: Path) -> None:
    some_rows(tmp_path / "mine.csv", "GT0416", "GT0003", "GT0007", "GT0001", "GT0050")
    answer = foretune("backtest", "--data", "mine.csv", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    memory = json.loads(answer.stdout)["memory"]
    assert memory["num_rows"] == 2
    assert 0 <= memory["median_abs_error"] <= memory["p90_abs_error"] < 0.05
    assert memory["baseline_median_abs_error"] > memory["median_abs_error"]
    assert memory["oom_recall"] == 1.0
    assert memory["false_refusals"] == 0.0
    shown = foretune("backtest", "--data", "mine.csv").stdout
    for part in ("GT0416", "SimpleTuner", "kind of peak", "baseline error", "median error", "Out of memory: 1 rows"):
        assert part in shown


def test_the_exam_records_nothing_unless_asked(foretune: Foretune, tmp_path: Path) -> None:
    """torch is installed here, and a step that does not ship could be recorded; that takes minutes for many rows."""
    some_rows(tmp_path / "mine.csv", "GT0416")
    text = (tmp_path / "mine.csv").read_text(encoding="utf-8")
    targets = catalog.measurements()["GT0416"].lora_targets
    assert targets is not None
    (tmp_path / "mine.csv").write_text(text.replace(targets, "to_q"), encoding="utf-8")
    answer = foretune("backtest", "--data", "mine.csv", "--json")
    (left_out,) = json.loads(answer.stdout)["left_out"]
    assert left_out["id"] == "GT0416"
    assert "has no trace of this step" in left_out["reason"]
    assert imported(HEAVY, "backtest", "--data", str(tmp_path / "mine.csv")) == []


def test_the_exam_on_a_file_without_an_answer(foretune: Foretune, tmp_path: Path) -> None:
    some_rows(tmp_path / "none.csv", "GT0001", "GT0002")
    answer = foretune("backtest", "--data", "none.csv")
    assert answer.returncode == 0
    assert "No row with an exact peak could be planned." in answer.stdout
    memory = json.loads(foretune("backtest", "--data", "none.csv", "--json").stdout)["memory"]
    assert (memory["num_rows"], memory["median_abs_error"], memory["oom_recall"]) == (0, None, None)


def test_a_file_of_something_else(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    answer = foretune("backtest", "--data", "other.csv")
    assert answer.returncode == 2
    assert "has no column named id, task, model, method, framework" in answer.stderr


def test_every_on_counts(foretune: Foretune) -> None:
    answer = foretune("plan", "sd3-medium", "--on", "l4", "--on", "rtx-3060,h100-sxm", "--json")
    assert [plan["device"] for plan in json.loads(answer.stdout)] == ["l4", "rtx-3060", "h100-sxm"]


def test_mistakes_in_prices_and_devices_are_reported_together(foretune: Foretune) -> None:
    answer = foretune("plan", "sd3-medium", "--on", "l4:limit=9TB", "--price", "l4=cheap", "train.steps=0")
    assert answer.returncode == 2
    for part in ("l4:limit=9TB", "--price l4=cheap", "train.steps"):
        assert part in answer.stderr


def test_a_goal_goes_with_its_options_only(foretune: Foretune) -> None:
    answer = foretune("plan", "sd3-medium", "--deadline", "6h")
    assert answer.returncode == 2
    assert "--deadline goes with --goal" in answer.stderr
    answer = foretune("plan", "sd3-medium", "--goal", "cheapest", "--explain")
    assert answer.returncode == 2
    assert "--explain does not go with --goal" in answer.stderr
    answer = foretune("plan", "sd3-medium", "--restart-wait", "10min")
    assert answer.returncode == 2
    assert "--restart-wait goes with --spot" in answer.stderr
    answer = foretune("plan", "sd3-medium", "--on", "l4", "--interconnect", "400Gb/s")
    assert answer.returncode == 2
    assert "parallel.devices=8" in answer.stderr
    answer = foretune("plan", "all", "--goal", "cheapest")
    assert answer.returncode == 2
    assert "for one model" in answer.stderr


def test_several_devices_are_planned_with_their_links_and_on_spot(foretune: Foretune) -> None:
    answer = foretune(
        "plan", "sd3-medium", "parallel.devices=2", "--on", "l4", "--interconnect", "pcie=3.0x8",
        "--spot", "--price", "l4=0.2", "--interruptions-per-day", "2",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "connected by PCIe 3.0 x8 (as given" in answer.stdout
    assert "2 devices, or 2 runs on one each?" in answer.stdout
    assert "On spot: " in answer.stdout
    assert "At 2 interruptions a day per machine" in answer.stdout


def test_a_search_writes_its_page(foretune: Foretune, tmp_path: Path) -> None:
    page = tmp_path / "search.html"
    arguments = ("plan", "sd3-medium", "--goal", "cheapest", "--on", "l4", "--devices", "1,2", "--html", str(page))
    answer = foretune(*arguments)
    assert answer.returncode == 0, answer.stderr
    assert f"Wrote {page}" in answer.stdout
    assert "<svg" in page.read_text(encoding="utf-8")


def test_mistakes_in_a_goal_are_reported_together(foretune: Foretune) -> None:
    answer = foretune("plan", "sd3-medium", "--goal", "best", "--deadline", "soon", "--budget", "little", "--on", "l4")
    assert answer.returncode == 2
    for part in ("best", "--deadline 6h", "--budget 20usd"):
        assert part in answer.stderr


INFERENCE = ("plan", "flux.1-dev", "--inference", "--on", "rtx-4090,h100-sxm")


def test_a_plan_of_inference_fits_a_screen(foretune: Foretune) -> None:
    answer = foretune(*INFERENCE)
    assert (answer.returncode, answer.stderr) == (0, "")
    title, sentence, *lines = answer.stdout.splitlines()
    assert title == "flux.1-dev: inference in bf16, batch 1, 1024 x 1024 px, 28 steps"
    assert sentence == "Fits on h100-sxm. Does not fit on rtx-4090. The peak phase is decoding."
    assert all(len(line) <= 80 for line in answer.stdout.splitlines())
    assert any(line.startswith("tensors by phase") for line in lines)
    assert any(line.startswith("To make it fit on rtx-4090: --offload encoders (") for line in lines)


def test_the_table_of_inference_says_what_json_says(foretune: Foretune) -> None:
    shown = foretune(*INFERENCE).stdout
    plans = json.loads(foretune(*INFERENCE, "--json").stdout)
    assert [plan["format"] for plan in plans] == ["InferencePlan", "InferencePlan"]
    for plan in plans:
        line = next(line for line in shown.splitlines() if line.startswith(plan["device"] + " "))
        for number in (f"{plan['process_bytes'] / 2**30:.1f} (", f"{plan['time']['denoising_steps_per_s']:.3g}"):
            assert number in line
        assert f"${plan['usd_per_thousand']:.2f}" in line


def test_compiled_inference_has_no_time(foretune: Foretune) -> None:
    answer = foretune(*INFERENCE, "--compile", "regional", "--json")
    assert [plan["time"] for plan in json.loads(answer.stdout)] == [None, None]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("--batch", "4"), "--batch is for inference. Of training: foretune plan MODEL train.batch_size=4"),
        (("--inference", "--goal", "cheapest"), "--goal does not go with --inference"),
        (("--inference", "train.batch_size=4"), "--inference takes a model and options, not 'train.batch_size=4'"),
        (("--inference", "--quantize", "int9"), "int8"),
        (("--inference", "--offload", "encoder"), "encoders"),
        (("--inference", "--compile", "all"), "'all' is not one of 'off', 'regional'"),
    ],
)
def test_options_of_the_other_plan_are_refused(foretune: Foretune, typed: tuple[str, ...], message: str) -> None:
    answer = foretune("plan", "sd3-medium", *typed, "--on", "l4")
    assert answer.returncode == 2
    assert message in answer.stderr
