"""`foretune compare` and `foretune gate` as they are typed."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretune.analyse import comparing_inference
from foretune.measure import interleaved
from tests.analyse.made_runs import ENVIRONMENT, asked, make_repeats, make_run
from tests.cli.conftest import Foretune

LEVELS_S = (0.100, 0.101, 0.099, 0.100, 0.102)


@pytest.fixture
def three(tmp_path: Path) -> None:
    """`base`, the same again, and something slower, below the directory in which commands are typed."""
    for name, factor in (("base", 1.0), ("same", 1.001), ("slow", 1.2)):
        make_repeats(tmp_path / name, [factor * level_s for level_s in LEVELS_S])


@pytest.mark.usefixtures("three")
def test_compare_shows_ratio_interval_unit_and_n(foretune: Foretune) -> None:
    answer = foretune("compare", "base", "slow")
    assert answer.returncode == 0
    lines = answer.stdout.splitlines()
    assert lines[0] == "a: base: 5 runs, 100 steps count, none left out"
    step_time = next(line for line in lines if line.startswith("step time"))
    assert "0.10 s" in step_time
    assert "1.20" in step_time
    assert "5 + 5" in step_time
    assert step_time.rstrip().endswith("b is higher")
    assert "97 % interval" in answer.stdout


@pytest.mark.usefixtures("three")
def test_compare_shows_a_tilde_where_no_difference_was_shown(foretune: Foretune) -> None:
    step_time = next(line for line in foretune("compare", "base", "same").stdout.splitlines() if "step time" in line)
    assert " ~ " in step_time
    assert step_time.rstrip().endswith("no difference shown")


@pytest.mark.usefixtures("three")
def test_compare_says_what_was_left_out(foretune: Foretune, tmp_path: Path) -> None:
    make_run(tmp_path / "warm" / "x", [9.0, 9.0, *[0.1] * 40])
    answer = foretune("compare", "base", "warm")
    assert "b: warm: 1 run, 40 steps count, 2 left out (warm-up: the first 2 steps)" in answer.stdout


@pytest.mark.usefixtures("three")
def test_compare_as_json(foretune: Foretune) -> None:
    found = json.loads(foretune("compare", "base", "slow", "--json").stdout)
    assert found["comparisons"][0]["format"] == "Comparison"
    assert found["comparisons"][0]["answer"] == "b is higher"
    assert found["sides"][0]["a"]["num_values"] == 100


def test_compare_refuses_other_environments_unless_asked(foretune: Foretune, tmp_path: Path) -> None:
    make_repeats(tmp_path / "here", LEVELS_S)
    make_repeats(tmp_path / "there", LEVELS_S, environment={**ENVIRONMENT, "cpu": "other"})
    refused = foretune("compare", "here", "there")
    assert refused.returncode == 2
    assert "cpu: one against other" in refused.stderr
    result = foretune("compare", "here", "there", "--across-environments")
    assert result.returncode == 0
    assert "! across environments: cpu: one against other" in result.stdout


def test_compare_knows_an_experiment_from_a_run(foretune: Foretune, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: x\n")
    answer = foretune("compare", "a.yaml", "a.yaml")
    assert answer.returncode == 2
    assert "foretune compare A.yaml B.yaml --run" in answer.stderr


@pytest.mark.usefixtures("three")
def test_compare_refuses_what_it_would_ignore(foretune: Foretune) -> None:
    third = foretune("compare", "base", "same", "slow")
    assert third.returncode == 2
    assert "foretune report base same slow" in third.stderr
    measuring = foretune("compare", "base", "same", "--repeat", "3")
    assert measuring.returncode == 2
    assert "--repeat is for measuring now" in measuring.stderr


def test_compare_measures_in_turns(foretune: Foretune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure(asked: Any, directory: Path, *, num_steps: int, is_synthetic: bool) -> Path:
        order.append(asked.experiment.name)
        level_s = {"fast": 0.1, "slow": 0.15}[asked.experiment.name] * (1 + 0.01 * len(order))
        return make_run(directory / "runs" / str(len(order)), [level_s] * num_steps, experiment=asked.experiment)

    monkeypatch.setattr(interleaved, "measure_once", measure)
    for name in ("fast", "slow"):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\nmodel: flux.1-dev\ndata: {{kind: shapes}}\ntrain: {{steps: 20}}\n"
        )
    answer = foretune("compare", "fast.yaml", "slow.yaml", "--run", "--repeat", "4", "--steps", "12", "--json")
    assert answer.returncode == 0, answer.stderr
    assert order == ["fast", "slow", "slow", "fast", "fast", "slow", "slow", "fast"]
    step_time = json.loads(answer.stdout)["comparisons"][0]
    assert step_time["answer"] == "b is higher"
    assert step_time["ratio"] == pytest.approx(1.5, rel=0.01)


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(("candidate", "code", "verdict"), [("same", 0, "pass"), ("slow", 1, "slower")])
def test_gate_answers_by_exit_code(foretune: Foretune, candidate: str, code: int, verdict: str) -> None:
    answer = foretune("gate", "base", candidate, "--max-slowdown", "5%")
    assert answer.returncode == code
    assert f"\n{verdict}: " in answer.stdout
    found = json.loads(foretune("gate", "base", candidate, "--max-slowdown", "0.05", "--json").stdout)
    assert (found["verdict"], found["exit_code"]) == (verdict, code)


def test_gate_that_cannot_tell_asks_for_more_runs(foretune: Foretune, tmp_path: Path) -> None:
    make_repeats(tmp_path / "base", [0.08, 0.10, 0.12])
    make_repeats(tmp_path / "new", [0.12, 0.09, 0.10])
    answer = foretune("gate", "base", "new")
    assert answer.returncode == 3
    assert "more runs of each side" in answer.stdout
    assert "foretune bench EXPERIMENT.yaml --repeat " in answer.stdout
    assert "the baseline and the candidate have 3 runs only" in answer.stdout


def test_gate_advises_only_options_that_the_verb_it_names_has(foretune: Foretune, tmp_path: Path) -> None:
    make_repeats(tmp_path / "base", LEVELS_S)
    make_repeats(tmp_path / "new", LEVELS_S, experiment=asked(method={"kind": "lora", "rank": 4}))
    answer = foretune("gate", "base", "new")
    assert answer.returncode == 2
    assert "method.rank: 16 against 4" in answer.stderr
    assert answer.stderr.rstrip().endswith("run: foretune compare A B --across-questions")
    advised = foretune("compare", "base", "new", "--across-questions")
    assert advised.returncode == 0, advised.stderr


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("share", ["5", "many", "-3%", "0"])
def test_gate_refuses_what_is_no_share(foretune: Foretune, share: str) -> None:
    answer = foretune("gate", "base", "same", f"--max-slowdown={share}")
    assert answer.returncode == 2
    assert "--max-slowdown 5%" in answer.stderr


def test_gate_sees_steps_that_wait_now_and_then(foretune: Foretune, tmp_path: Path) -> None:
    make_repeats(tmp_path / "base", LEVELS_S)
    for number, level_s in enumerate(LEVELS_S):
        waiting = [level_s * (2.0 if step % 4 == 3 else 1.0) for step in range(60)]
        make_run(tmp_path / "bursts" / str(number), waiting)
    answer = foretune("gate", "base", "bursts")
    assert answer.returncode == 1, answer.stdout
    assert "slower: slower than allowed: all steps together measured +2" in answer.stdout


@pytest.mark.usefixtures("three")
def test_gate_does_not_pass_a_candidate_that_crashes(foretune: Foretune, tmp_path: Path) -> None:
    make_run(tmp_path / "same" / "crashed", [0.1] * 3, status="failed")
    answer = foretune("gate", "base", "same")
    assert answer.returncode == 3
    assert "1 run of the candidate did not finish" in answer.stdout


@pytest.mark.usefixtures("three")
def test_a_fault_of_the_gate_is_not_told_as_slower(foretune: Foretune, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(comparing_inference, "compare_paths", broken)
    answer = foretune("gate", "base", "same")
    assert answer.returncode == 2
    assert "ZeroDivisionError: planted" in answer.stderr


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(("baseline", "candidate"), [("base", "base"), (".", "slow"), ("slow/../base/run-00", "base")])
def test_gate_does_not_pass_runs_against_themselves(foretune: Foretune, baseline: str, candidate: str) -> None:
    answer = foretune("gate", baseline, candidate)
    assert answer.returncode == 2
    assert "hold the same runs" in answer.stderr
