"""The command line starts fast, brings nothing heavy in, and says its name."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretune import __version__
from tests.cli.conftest import PROGRAM, Foretune, environment
from tests.waiting import HANG_S

NUM_STARTS = 10
MOST_STARTS = 50
VERBS = (
    *("init", "plan", "backtest", "train", "resume", "sample", "export", "list", "schema", "doctor", "tiny"),
    *(
        "bench",
        "study",
        "profile",
        "compare",
        "gate",
        "check",
        "calibrate",
        "evaluate",
        "report",
        "demo",
        "import-accelerate",
    ),
    *("fetch", "publish", "import-checkpoint", "import", "sweep", "watch", "data"),
)
HEAVY = ("accelerate", "datasets", "diffusers", "huggingface_hub", "numpy", "peft", "PIL", "torch", "transformers")


def processor_s(*command: str) -> float:
    """Seconds at work of a process, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_at_most_twice_as_long_as_importing_typer(report_figure: Callable[[str], None]) -> None:
    """Every start needs typer, whose import takes about 0.15 s. Both take turns, so that a slow or busy machine slows
    both; the least of each is what nobody disturbed.
    """
    ours, typer = (*PROGRAM, "--help"), (sys.executable, "-c", "import typer")
    processor_s(*ours)  # the first one may compile
    turns: list[tuple[float, float]] = []
    ours_s, typer_s = 1.0, 0.0
    # Where other processes fill the caches of the processor, more starts find one that they left alone.
    while ours_s >= 2 * typer_s and len(turns) < MOST_STARTS:
        turns += [(processor_s(*ours), processor_s(*typer)) for _ in range(NUM_STARTS)]
        ours_s, typer_s = (min(turn) for turn in zip(*turns, strict=True))
    report_figure(
        f"foretune --help: least of {len(turns)} starts {ours_s:.3f} s of processor time, {ours_s / typer_s:.2f} times "
        f"an import of typer"
    )
    assert ours_s < 2 * typer_s


def imported(packages: tuple[str, ...], *arguments: str, code: int = 0) -> list[str]:
    """Which of the packages a run of the program imports."""
    program = (
        "import sys\n"
        "from foretune.cli.main import main\n"
        f"sys.argv = ['foretune', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        f"    assert (end.code or 0) == {code}, end.code\n"
        f"print(*(name for name in {packages!r} if name in sys.modules), file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=HANG_S, check=True
    )
    return ran.stderr.splitlines()[-1].split()


def test_help_imports_nothing_it_does_not_need() -> None:
    assert imported((*HEAVY, "rich", "pydantic", "yaml"), "--help") == []


@pytest.mark.parametrize("arguments", ["--version", "train --help", "list --help"])
def test_other_help_is_light_too(arguments: str) -> None:
    assert imported((*HEAVY, "rich", "yaml"), *arguments.split()) == []


@pytest.mark.parametrize("arguments", ["list models", "list devices --json", "list methods", "schema", "doctor --help"])
def test_torch_is_not_imported_without_need(arguments: str) -> None:
    assert imported(HEAVY, *arguments.split()) == []


MISTAKES = (
    "init x.yaml --model flx.1-dev",
    "import-accelerate nowhere.yaml",
    "import-checkpoint nowhere.safetensors --base sdxl",
    "plan flx.1-dev",
    "backtest --data nowhere.csv",
    "calibrate --budget nonsense",
    "train nowhere.yaml",
    "bench nowhere.yaml",
    "bench nowhere/at/all --inference",
    "bench flx.1-dev --inference",
    "bench ddpm-cifar10 --inference --preset clasical",
    "profile nowhere.yaml",
    "compare nowhere there",
    "compare a.yaml b.yaml --run",
    "report nowhere",
    "gate nowhere there",
    "study batchsize --no-plot",
    "study nowhere.yaml --no-plot",
    "sweep nowhere.yaml --no-plot",
    "watch nowhere",
    "data import nowhere.zip --output images",
    "resume nowhere",
    "sample --base flx.1-dev",
    "evaluate runs/no/where",
    "evaluate flx.1-dev",
    "evaluate foretune-shapes --against flx.1-dev",
    "export nowhere",
    "import nowhere.toml",
    "fetch flx.1-dev",
    "fetch owner/unknown --dry-run",
    "publish nowhere --to me/model",
    "publish nowhere --to model",
    "list modles",
    "schema --nothing",
    "check nowhere",
    "doctor --only trainig",
    "tiny fluks somewhere",
    "tiny flux somewhere --variant shnell",
    "demo --nothing",
)


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_in_the_arguments_is_found_without_torch(arguments: str) -> None:
    """Importing it takes up to ten seconds, which nobody should wait for a typo."""
    assert imported(("torch", "diffusers", "transformers"), *arguments.split(), code=2) == []


def test_a_config_that_does_not_exist_is_found_before_the_schema_is_imported() -> None:
    assert imported(("foretune.config", "yaml"), "import-accelerate", "nowhere.yaml", code=2) == []


def test_a_run_without_bitsandbytes_does_not_import_it(tiny_pipeline: Callable[..., Path], tmp_path: Path) -> None:
    """diffusers and peft would, wherever it is installed: a seventh of the time until the first step."""
    pytest.importorskip("bitsandbytes")
    experiment = {
        "model": str(tiny_pipeline("flux")),
        "method": {"kind": "lora", "rank": 4},
        "data": {"kind": "shapes", "num_samples": 4, "resolution": 32, "max_text_tokens": 16, "held_out": 0.0},
        "train": {"steps": 1, "batch_size": 1, "precision": "fp32"},
    }
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(experiment))  # JSON is YAML
    packages = ("peft", "bitsandbytes", "torch._inductor.compile_fx")
    assert imported(packages, "train", str(file), "--runs", str(tmp_path / "runs")) == ["peft"]


def test_every_verb_has_a_mistake() -> None:
    assert {arguments.split()[0] for arguments in MISTAKES} == set(VERBS)


def test_the_check_itself_sees_an_import() -> None:
    assert "rich" in imported(("rich",), "list", "methods")


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ()])
def test_help_lists_every_verb_whole(foretune: Foretune, arguments: tuple[str, ...]) -> None:
    answer = foretune(*arguments)
    shown = answer.stdout + answer.stderr
    assert "Usage: foretune [OPTIONS] COMMAND" in shown
    lines = {line.split()[0]: line for line in shown.partition("Commands:")[2].splitlines() if line.strip()}
    assert sorted(lines) == sorted(VERBS)
    assert [line for line in lines.values() if line.endswith("...")] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_under_the_program_s_name(foretune: Foretune, verb: str) -> None:
    answer = foretune(verb, "--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"Usage: foretune {verb} ")


def test_the_version(foretune: Foretune) -> None:
    answer = foretune("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"foretune {__version__}\n", "")


def test_both_ways_to_start_it_are_one(foretune_process: Foretune) -> None:
    other = subprocess.run(
        [sys.executable, "-m", "foretune.cli.main", "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == foretune_process("--help").stdout


def test_a_mistyped_verb(foretune: Foretune) -> None:
    answer = foretune("trian")
    assert answer.returncode == 2
    assert answer.stderr.startswith("Usage: foretune ")
    assert "No such command 'trian'. Did you mean 'train'" in answer.stderr
