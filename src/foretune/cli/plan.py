"""`foretune plan`: what fits, before anything is downloaded."""

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretune.cli.inference_options import Compile
from foretune.cli.options import refuse_given
from foretune.cli.status import StatusObserver
from foretune.core.errors import UserError

if TYPE_CHECKING:
    from foretune.api.plan import Plans

_ALL = "all"
_COMMON = "common"


_OF_INFERENCE = {
    "batch": "is for inference. Of training: foretune plan MODEL train.batch_size=4",
    "precision": "is for inference. Of training: foretune plan MODEL train.precision=bf16",
    "quantize": "is for inference. Of training: foretune plan MODEL quantize.denoiser=int8",
    "compiled": "is for inference. Of training: foretune plan MODEL levers.compile=regional",
    "size": "is for inference. Of training: foretune plan MODEL data.resolution=512",
    "vae_tiling": "is for inference. Of training: foretune plan MODEL levers.vae_tiling=true",
} | dict.fromkeys(("adapter_rank", "offload", "inference_steps"), "is for inference. Add --inference")
"""Options that only a plan of inference has."""
_NOT_OF_INFERENCE = ("interconnect", "spot", "interruptions", "restart_wait", "expandable", "live", "html", "goal")
_OF_A_SEARCH = ("num_devices", "deadline", "budget", "min_batch", "output")
_OF_TRAINING = {
    "height": "is for training. Of inference: foretune plan MODEL --inference --size 768x512",
    "width": "is for training. Of inference: foretune plan MODEL --inference --size 768x512",
} | dict.fromkeys((*_NOT_OF_INFERENCE, *_OF_A_SEARCH), "does not go with --inference. Leave it out")
"""Options that a plan of inference does not have."""

_Target = Annotated[
    str,
    typer.Argument(
        help="An experiment file, a configuration of another trainer, a model, or `all` models.",
        metavar="MODEL|EXPERIMENT|all",
    ),
]
_Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes: key=value ...", show_default=False, metavar="[KEY=VALUE]...")
]
_On = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        help="Cards, separated by commas: 4090, h100, 16GiB, `here`; `all` of the catalogue; or `common`, one card "
        "of each size from 10 to 80 GB. 4090:limit=20GiB leaves memory to others, 4090:pcie=4.0x8 sets the link.",
        show_default=f"{_COMMON}; with --goal {_ALL}",
    ),
]
_Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        help="US dollars for an hour of a device: h100-sxm=2.49. Repeatable.",
        show_default=False,
        metavar="DEVICE=USD",
    ),
]
_Interconnect = Annotated[
    list[str] | None,
    typer.Option(
        "--interconnect",
        help="How several devices are connected: nvlink or pcie=4.0x16 in a machine, 400Gb/s between machines, for "
        "each device. Repeatable.",
        show_default="the usual server of the device",
        metavar="LINK",
    ),
]
_Spot = Annotated[
    bool, typer.Option("--spot", help="Expected time and price on spot instances; --price is then the spot price.")
]
_Interruptions = Annotated[
    float | None,
    typer.Option(
        "--interruptions-per-day", help="With --spot: how often a machine is taken away.", show_default="1 per day"
    ),
]
_Wait = Annotated[
    str | None,
    typer.Option("--restart-wait", help="With --spot: until the next instance starts.", show_default="10min"),
]
_Counts = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="With --goal: how many of a device to try. The samples of an optimizer step stay the same.",
        show_default="1,2,4,8, or parallel.devices",
        metavar="NUMBERS",
    ),
]
_Ram = Annotated[
    str | None, typer.Option("--ram", help="Also judge the host's memory: 32GiB, or `here`.", show_default=False)
]
_Height = Annotated[int | None, typer.Option("--height", help="Pixels; without it, data.resolution decides.")]
_Frames = Annotated[int | None, typer.Option("--frames", help="Frames of a video; the model's own if left out.")]
_Expandable = Annotated[
    bool, typer.Option("--expandable-segments", help="As with PYTORCH_ALLOC_CONF=expandable_segments:True.")
]
_Goal = Annotated[
    str | None,
    typer.Option(
        "--goal",
        help="Search devices and settings: cheapest, fastest, or smallest (the least memory of all its devices).",
        show_default=False,
    ),
]
_Deadline = Annotated[
    str | None, typer.Option("--deadline", help="With --goal: the longest time of the job, 6h.", show_default=False)
]
_Budget = Annotated[
    str | None, typer.Option("--budget", help="With --goal: the highest price of the job, 20usd.", show_default=False)
]
_MinBatch = Annotated[
    int | None,
    typer.Option("--min-batch", help="With --goal: the smallest batch of a forward pass.", show_default=False),
]
_Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="With --goal: where to write the experiment file.", show_default=False),
]


_Inference = Annotated[bool, typer.Option("--inference", help="Plan inference: memory, time and price of images.")]
_Batch = Annotated[int, typer.Option("--batch", min=1, help="Of inference: images or clips made at once.")]
_Precision = Annotated[str, typer.Option("--precision", help="Of inference: fp32, tf32, bf16 or fp16.")]
_Quantize = Annotated[
    str, typer.Option("--quantize", help="Of inference: int8, float8, nf4 or int8-bnb weights of the denoiser.")
]
_Size = Annotated[str | None, typer.Option("--size", help="Of inference: pixels, 512 or 416x240 (width x height).")]
_AdapterRank = Annotated[
    int | None,
    typer.Option("--adapter-rank", min=1, help="Of inference: rank of a LoRA that is not merged into the weights."),
]
_Offload = Annotated[
    str,
    typer.Option(
        "--offload",
        help="Of inference: encoders frees the text encoders before the denoiser is loaded, as foretune sample does; "
        "model has each part on the device only while it computes.",
    ),
]
_Tiling = Annotated[bool, typer.Option("--vae-tiling", help="Of inference: decode in tiles.")]
_Steps = Annotated[int, typer.Option("--inference-steps", min=1, help="Denoising steps of an image.")]


def plan(
    context: typer.Context,
    target: _Target,
    overrides: _Overrides = None,
    on: _On = None,
    price: _Price = None,
    interconnect: _Interconnect = None,
    spot: _Spot = False,
    interruptions: _Interruptions = None,
    restart_wait: _Wait = None,
    ram: _Ram = None,
    height: _Height = None,
    width: Annotated[int | None, typer.Option("--width", help="Pixels; goes with --height.")] = None,
    frames: _Frames = None,
    expandable: _Expandable = False,
    inference: _Inference = False,
    batch: _Batch = 1,
    precision: _Precision = "bf16",
    quantize: _Quantize = "none",
    compiled: Compile = "off",
    size: _Size = None,
    inference_steps: _Steps = 28,
    adapter_rank: _AdapterRank = None,
    offload: _Offload = "none",
    vae_tiling: _Tiling = False,
    explain: Annotated[bool, typer.Option("--explain", help="Break the figures down to parts and tensors.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Record the step now instead of reading its trace.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with pictures.")] = None,
    goal: _Goal = None,
    num_devices: _Counts = None,
    deadline: _Deadline = None,
    budget: _Budget = None,
    min_batch: _MinBatch = None,
    output: _Output = None,
) -> None:
    """Say what fits. Example: foretune plan flux.1-dev method.kind=lora --on rtx-4090,l4,h100-sxm"""
    typed = locals()
    # Hundreds of thousands of small objects that all stay: collecting garbage among them only costs time.
    gc.disable()
    refuse_given(context, _OF_TRAINING if inference else _OF_INFERENCE)
    if inference:
        _inference(typed)
    else:
        _training(typed)


def _inference(typed: Mapping[str, Any]) -> None:
    from foretune.api.plan_inference import plan_inference

    target, overrides = typed["target"], typed["overrides"]
    if overrides:
        raise UserError(
            f"--inference takes a model and options, not {overrides[0]!r}. "
            "Run: foretune plan MODEL --inference --batch 4"
        )
    names = ("batch", "precision", "quantize", "offload", "vae_tiling", "adapter_rank", "size", "frames", "ram")
    with StatusObserver(f"Planning {target}") as observer:
        plans = plan_inference(
            target,
            on=",".join(typed["on"] or [_COMMON]),
            prices=typed["price"],
            compile=typed["compiled"],
            inference_steps=typed["inference_steps"],
            **{name: typed[name] for name in names},
            observer=observer,
        )
    if typed["as_json"]:
        typer.echo(json.dumps(plans.to_mappings(), indent=2))
        return
    from foretune.reports.terminal.inference_plans import print_inference_plans
    from foretune.reports.terminal.tables import console

    print_inference_plans(console(), plans, explain=typed["explain"])


def _training(typed: Mapping[str, Any]) -> None:
    target, on, goal, html, as_json = (typed[name] for name in ("target", "on", "goal", "html", "as_json"))
    size: dict[str, Any] = {name: typed[name] for name in ("height", "width", "frames")}
    terms: dict[str, Any] = {
        "prices": typed["price"],
        "interconnect": typed["interconnect"],
        "spot": typed["spot"],
        "interruptions_per_day": typed["interruptions"],
        "restart_wait": typed["restart_wait"],
    }
    plain = {
        "--ram": typed["ram"],
        "--expandable-segments": typed["expandable"],
        "--explain": typed["explain"],
        "--live": typed["live"],
    }
    searching = {
        "--devices": typed["num_devices"],
        "--deadline": typed["deadline"],
        "--budget": typed["budget"],
        "--min-batch": typed["min_batch"],
        "--output": typed["output"],
    }
    _check_goal(goal, plain, searching)
    if not typed["spot"]:
        late = {"--interruptions-per-day": typed["interruptions"], "--restart-wait": typed["restart_wait"]}
        _refuse(late, "goes with --spot")
    if goal is not None:
        limits = {name: typed[name] for name in ("num_devices", "deadline", "budget")}
        limits["min_batch"] = typed["min_batch"] or 1
        request = {"goal": goal, "on": ",".join(on or [_ALL]), "file": typed["output"], **limits, **terms, **size}
        _search(target, typed["overrides"], request, html, as_json=as_json)
    else:
        devices = ",".join(on or [_COMMON])
        has_menus = as_json or html is not None or typed["explain"] or not _is_overview(target, devices)
        advice = "menu" if has_menus else "none" if target == _ALL else "first"
        request = {"on": devices, "ram": typed["ram"], "expandable_segments": typed["expandable"]}
        request |= {"live": typed["live"], "advice": advice, **terms, **size}
        _plan(target, typed["overrides"], request, html, explain=typed["explain"], as_json=as_json)


def _plan(
    target: str,
    overrides: list[str] | None,
    request: dict[str, Any],
    html: Path | None,
    *,
    explain: bool,
    as_json: bool,
) -> None:
    from foretune.api.plan import plan as plan_all

    with StatusObserver(f"Planning {target}") as observer:
        plans = plan_all(target, overrides, **request, observer=observer)
    if html is not None:
        plans.write_page(html)
    _print(plans, html, explain=explain, as_json=as_json)
    _print_refused(plans)


def _check_goal(goal: str | None, plain: Mapping[str, Any], searching: Mapping[str, Any]) -> None:
    """Raises for options that would be ignored."""
    if goal is None:
        _refuse(searching, "goes with --goal. Run: foretune plan MODEL --goal cheapest ...")
    else:
        _refuse(plain, "does not go with --goal. Search first, then plan what is recommended")


def _refuse(options: Mapping[str, Any], reason: str) -> None:
    typed = [option for option, value in options.items() if value not in (None, False)]
    if typed:
        raise UserError(f"{', '.join(typed)} {reason}")


def _search(
    target: str, overrides: list[str] | None, request: dict[str, Any], html: Path | None, *, as_json: bool
) -> None:
    from foretune.api.recommend import recommend

    with StatusObserver(f"Searching for {target}") as observer:
        found = recommend(target, overrides, **request, draws=html is not None, observer=observer)
        if html is not None:
            found.write_page(html)
    if as_json:
        typer.echo(json.dumps(found.to_mapping(), indent=2))
        return
    from foretune.reports.terminal.recommendation import print_recommendation
    from foretune.reports.terminal.tables import console

    print_recommendation(console(), found.asked, found.answer)
    if html is not None:
        typer.echo(f"Wrote {html}")
    if request["file"] is not None:
        typer.echo(f"Wrote {request['file']}. Next: foretune train {request['file']}")


def _is_overview(target: str, on: str) -> bool:
    """Whether the answer has no room for whole menus."""
    from foretune.reports.terminal.plans import MOST_WITH_MENUS

    return _ALL in (target, on.strip()) or on.count(",") >= MOST_WITH_MENUS


def _print(plans: "Plans", html: Path | None, *, explain: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plans.to_mappings(), indent=2))
        return
    from foretune.reports.terminal.plans import print_groups
    from foretune.reports.terminal.tables import console

    print_groups(console(), plans.groups, explain=explain)
    if not explain and len(plans.groups) == 1:
        typer.secho("Phases, parts and assumptions: --explain. As a page: --html plan.html", dim=True)
    if html is not None:
        typer.echo(f"Wrote {html}")


def _print_refused(plans: "Plans") -> None:
    """Models that could not be planned, by the reason; where results do not go."""
    from foretune.api.plan import reasons

    if plans.refused:
        num_models = len(plans.refused)
        typer.echo(f"Not planned: {num_models} model{'s' if num_models > 1 else ''}", err=True)
    for reason, models in reasons(plans.refused).items():
        typer.echo(f"  {', '.join(models)}: {reason}", err=True)
