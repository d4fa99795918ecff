"""Questions of the planner's page: what a link or a form may hold, and the same for the command line."""

import shlex
from urllib.parse import parse_qsl

import pytest

from foretune.core.errors import UserError
from tools.browser_planner.answering import answer
from tools.browser_planner.common_questions import common_questions
from tools.browser_planner.question import Question

HOSTILE = {
    "model": [
        "<img src=x onerror=alert(1)>",
        "../../etc/passwd",
        "/etc/passwd",
        "experiment.yaml",
        "all",
        "",
        "x" * 401,
    ],
    "method": ["<script>", "full; rm -rf", "__class__"],
    "on": ["<b>", "all", "common", "here", "", "javascript:alert(1)", "rtx-4090,l4", "rtx-4090\n", "99999999GiB"],
    "rank": ["-1", "1e999", "[[[[", "${HOME}", "!!python/object/apply:os.system [id]"],
    "size": ["0", "99999x99999", "<svg onload=alert(1)>", "nan"],
    "settings": ["'unended", "model=/etc/passwd", "--live", "x" * 500, "\x00", "method.rank=!!python/name:os.system"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in HOSTILE.items() for value in values])
def test_a_hostile_value_is_an_answer_with_problems(field: str, value: str) -> None:
    found = answer({"model": "sd1.5-unet", "on": "rtx-3060", field: value})
    assert list(found) == ["problems"], f"{field}={value!r} was planned"
    assert all(isinstance(problem, str) and problem for problem in found["problems"])


def test_what_is_no_text_is_refused() -> None:
    assert "problems" in answer({"model": ["flux.1-dev"], "on": "rtx-4090"})
    assert "problems" in answer({"model": "flux.1-dev", "on": {"toString": "rtx-4090"}})


def test_a_link_leaves_out_what_is_usual_and_opens_the_same_question() -> None:
    question = Question(model="wan2.1-t2v-14b", method="lokr", on="16GiB", frames="33", settings="a.b=[1, 2] c.d=x&y")
    assert question.fragment == (
        "model=wan2.1-t2v-14b&method=lokr&frames=33&on=16GiB&settings=a.b%3D%5B1%2C+2%5D+c.d%3Dx%26y"
    )
    assert Question.of(dict(parse_qsl(question.fragment))) == question
    assert Question(model="flux.1-dev", on="rtx-4090").fragment == "model=flux.1-dev&on=rtx-4090"


def test_a_command_is_one_that_a_shell_reads_the_same() -> None:
    question = Question(
        model="flux.1-dev",
        rank="32",
        size="1024x768",
        on="rtx-4090:limit=20GiB",
        settings="train.batch_size=2 'validate.prompts=[a $b; c]' PYTORCH_ALLOC_CONF=expandable_segments:True",
    )
    assert shlex.split(question.command()) == [
        "foretune", "plan", "flux.1-dev", "method.kind=lora", "method.rank=32", "data.resolution=1024x768",
        "train.batch_size=2", "validate.prompts=[a $b; c]", "--on", "rtx-4090:limit=20GiB", "--expandable-segments",
    ]  # fmt: skip


def test_there_are_a_hundred_common_questions_and_each_can_be_linked() -> None:
    questions = common_questions()
    fragments = {question.fragment for question in questions}
    assert len(questions) == len(fragments) == 100
    assert all(Question.of(dict(parse_qsl(fragment))).fragment == fragment for fragment in fragments)


def test_a_common_question_names_a_model_and_a_card_of_the_catalogue() -> None:
    with pytest.raises(UserError, match="There is no model named"):
        Question.of({"model": "flux.9", "on": "rtx-4090"})
