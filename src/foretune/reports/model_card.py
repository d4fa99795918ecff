"""The model card of a run: what it is, how to load it, and what was asked, planned and measured, from its record."""

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal, get_origin

import yaml
from pydantic import BaseModel

from foretune import catalog
from foretune.analyse.evaluations import quality_finding
from foretune.catalog import Licence
from foretune.choices.experiment import Experiment
from foretune.choices.section import INCIDENTAL
from foretune.core.scores import METRIC_SPECS
from foretune.core.units import counted_text, duration_text
from foretune.core.values import Evaluation, RunRecord
from foretune.reports.run_markdown import escaped
from foretune.reports.score_rows import band_lines, score_headings, score_rows, settings_text
from foretune.reports.terminal.run import measurements, weight_lines

_OWN_SECTIONS = ("save", "track", "accept", "profile")
"""Sections that matter only where the run was made."""
_SHOWN_PACKAGES = ("torch", "diffusers", "transformers", "peft")
_MEMORISATION = frozenset(score.name for spec in METRIC_SPECS if spec.name == "memorisation" for score in spec.scores)


@dataclass(frozen=True)
class CardSample:
    """A picture that the card shows."""

    file: str
    """Relative to the card."""
    prompt: str


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card is written from. Nothing in it names a folder of the machine that the run was made on."""

    repo: str
    experiment: Experiment
    record: RunRecord
    evaluation: Evaluation | None
    too_few_steps: str | None
    """Why differences of the evaluation must not be read as better or worse; None where they may."""
    base: str
    """The base model, as others know it."""
    base_repo: str | None
    """None for a base that is not on the Hub."""
    base_revision: str | None
    pipeline_class_name: str
    is_adapter: bool
    how_to_load: str
    proof: str
    note: str | None
    licence: Licence | None
    samples: tuple[CardSample, ...]


def model_card(facts: CardFacts) -> str:
    """The README of a repository on the Hub: metadata as YAML, then Markdown."""
    metadata = yaml.safe_dump(_metadata(facts), sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join([f"---\n{metadata}---", "", *_lines(facts)])


def _metadata(facts: CardFacts) -> dict[str, Any]:
    found: dict[str, Any] = {"library_name": "diffusers", "pipeline_tag": _pipeline_tag(facts)}
    if facts.base_repo is not None:
        relation = "adapter" if facts.is_adapter else "finetune"
        found |= {"base_model": facts.base_repo, "base_model_relation": relation}
    if facts.licence is not None and facts.licence.licence is not None:
        if facts.licence.link is None:
            found["license"] = facts.licence.licence
        else:
            found |= {"license": "other", "license_name": facts.licence.licence, "license_link": facts.licence.link}
    method = facts.experiment.method.kind
    tags = ["foretune", "diffusers", *([method] if facts.is_adapter else ["full-fine-tuning"])]
    found["tags"] = tags
    if facts.samples:
        found["widget"] = [{"text": one.prompt or "-", "output": {"url": one.file}} for one in facts.samples]
    return found


def _pipeline_tag(facts: CardFacts) -> str:
    family = catalog.family_of_pipeline(facts.pipeline_class_name)
    assert family is not None, "it was trained"
    row = catalog.family_facts(family)
    if not row.has_text:
        return "unconditional-image-generation"
    if facts.pipeline_class_name == row.image_pipeline_class_name:
        return "image-to-video"
    return "text-to-video" if row.is_video else "text-to-image"


def _lines(facts: CardFacts) -> Iterator[str]:
    kind = f"{facts.experiment.method.kind} adapter" if facts.is_adapter else "fine-tuned model"
    page = facts.base if facts.base_repo is None else f"[{facts.base_repo}](https://huggingface.co/{facts.base_repo})"
    commit = "" if facts.base_revision is None else f" (commit `{facts.base_revision}`)"
    yield f"# {facts.repo.partition('/')[2]}"
    yield f"\nA {kind} of {page}{commit}, trained with Foretune. The figures are from the run's record.\n"
    yield from _samples(facts)
    yield "## Load it\n"
    imports = "".join(f"import {name}\n" for name in ("diffusers", "peft") if f"{name}." in facts.how_to_load)
    yield f"```python\n{imports}\n{dedent(facts.how_to_load)}\n```\n"
    note = "" if facts.note is None else f" {escaped(facts.note)}"
    yield f"A clean process loaded these files: {facts.proof}.{note}\n"
    yield from _training(facts)
    yield from _quality(facts)
    yield from _licence(facts)
    yield from _versions(facts.record)


def _samples(facts: CardFacts) -> Iterator[str]:
    if not facts.samples:
        return
    yield "## Samples\n"
    yield "| prompt | sample |\n|---|---|"
    for one in facts.samples:
        yield f"| {escaped(one.prompt) or '(none)'} | ![{escaped(one.prompt) or 'sample'}]({one.file}) |"
    yield ""


def _training(facts: CardFacts) -> Iterator[str]:
    record = facts.record
    outcome = record.outcome
    yield "## Training\n"
    yield f"- {counted_text(outcome.steps_done, 'steps')} in {duration_text(record.wall_s)}: {outcome.status}"
    if record.num_trainable_params is not None and record.num_params is not None:
        yield from (f"- {line}" for line in weight_lines(record, None, base_unchanged=None))
    yield from (f"- {line}" for line in measurements(record, facts.experiment.profile))
    yield "\nSettings other than the defaults, without folders:\n"
    settings = {"model": facts.base_repo or facts.base, **_shown_settings(facts.experiment)}
    yield f"```yaml\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}```\n"


def _shown_settings(section: BaseModel) -> dict[str, Any]:
    """What was asked beyond the defaults. Incidental text is where files are, and says nothing to others."""
    found: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        is_place = INCIDENTAL in field.metadata and isinstance(value, str) and get_origin(field.annotation) != Literal
        is_default = not field.is_required() and value == field.get_default(call_default_factory=True)
        if is_place or name in _OWN_SECTIONS or (is_default and name != "kind"):
            continue
        if isinstance(value, BaseModel):
            inner = _shown_settings(value)
            found |= {field.alias or name: inner} if inner else {}
        else:
            found[field.alias or name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """As YAML takes it; sections in a list are shown as sections are."""
    if isinstance(value, tuple | list):
        return [_shown_settings(one) if isinstance(one, BaseModel) else one for one in value]
    return value


def _quality(facts: CardFacts) -> Iterator[str]:
    evaluation = facts.evaluation
    if evaluation is None:
        return
    yield "## Quality\n"
    finding = quality_finding(evaluation, facts.too_few_steps)
    yield escaped(finding.sentence) + ("" if finding.caveat is None else f" {escaped(finding.caveat)}")
    yield f"\n{escaped(settings_text(evaluation))}.\n"
    headings = score_headings(evaluation)
    yield "| " + " | ".join(map(escaped, headings)) + " |\n|" + "---|" * len(headings)
    yield from ("| " + " | ".join(map(escaped, row)) + " |" for row in score_rows(evaluation))
    yield ""
    parts = band_lines(evaluation)
    yield from (f"- {escaped(line)}" for line in parts)
    yield from [""] if parts else []
    if any(score.metric in _MEMORISATION and score.value is not None for score in evaluation.scores):
        yield (
            "Memorisation: `copies` is the share of samples that are nearer to one training image than any held-out "
            "image is; `nearest ratio` is the distance to the nearest training image over that to the second nearest, "
            "and 0 is a copy.\n"
        )


def _licence(facts: CardFacts) -> Iterator[str]:
    yield "## Licence\n"
    licence = None if facts.licence is None else facts.licence.licence
    if licence is None:
        where = "" if facts.base_repo is None else f": see https://huggingface.co/{facts.base_repo}"
        yield f"The licence of the base model applies{where}. It was not known when this card was written.\n"
    else:
        link = "" if facts.licence is None or facts.licence.link is None else f" ({facts.licence.link})"
        yield f"The licence of the base model applies: {licence}{link}.\n"


def _versions(record: RunRecord) -> Iterator[str]:
    packages = record.environment.get("packages") or {}
    found = [("Foretune", record.environment.get("foretune")), ("Python", record.environment.get("python"))]
    found += [(name, packages.get(name)) for name in _SHOWN_PACKAGES]
    yield "## Versions\n"
    yield ", ".join(f"{name} {version}" for name, version in found if version is not None) + "\n"
