"""The page of `foretune plan --html`: complete, to scale, readable, and inert whatever the names are."""

import re
from html.parser import HTMLParser

import pytest

from foretune import catalog
from foretune.core.units import GIB, MIB, bytes_text
from foretune.core.values.plan import PhaseMemory, Plan, Remedy, Tensor, Transfers, Verdict
from foretune.reports.plan_page import NothingPlanned, plan_page

_VOID = {"meta", "br"}


class Element:
    """A node of the parsed page."""

    def __init__(self, name: str, attributes: dict[str, str], parent: "Element | None") -> None:
        self.name, self.attributes, self.parent = name, attributes, parent
        self.children: list[Element] = []
        self.pieces: list[str] = []

    def find(self, name: str, class_: str | None = None) -> "list[Element]":
        found = [c for child in self.children for c in (child, *child.find("*"))]
        return [
            e
            for e in found
            if name in ("*", e.name) and (class_ is None or class_ in e.attributes.get("class", "").split())
        ]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def number(self, name: str) -> float:
        return float(self.attributes[name])


class Page(HTMLParser):
    """Parses strictly: every element is closed by its own end tag."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.root = self.open = Element("", {}, None)
        self.feed(document)
        self.close()
        assert self.open is self.root, f"<{self.open.name}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(element)
        if tag not in _VOID:
            self.open = element

    def handle_endtag(self, tag: str) -> None:
        assert self.open.name == tag, f"</{tag}> inside <{self.open.name}>"
        assert self.open.parent is not None
        self.open = self.open.parent

    def handle_data(self, data: str) -> None:
        element: Element | None = self.open
        while element is not None:
            element.pieces.append(data)
            element = element.parent


def a_plan(device: str = "rtx-4090", *, model: str = "flux.1-dev", scale: float = 1.0, **changes: object) -> Plan:
    def scaled(gib: float) -> int:
        return int(gib * scale * GIB)

    known = catalog.devices().get(device)
    usable_bytes = known.memory_bytes if known else 24 * GIB
    weights = {"frozen weights": scaled(22.17), "trained weights": scaled(0.07)}
    fields: dict[str, object] = {
        "experiment": f"hash of {model}",
        "model": model,
        "device": device,
        "world_size": 1,
        "sizes": {"batch_size": 1, "height_px": 1024, "width_px": 768, "num_frames": 1, "num_text_tokens": 512},
        "phases": (
            PhaseMemory(phase="caching text", device_bytes_by_part={"text encoders": scaled(9.1)}, host_bytes=GIB),
            PhaseMemory(phase="loading", device_bytes_by_part=weights, host_bytes=3 * GIB, disk_bytes=33 * GIB),
            PhaseMemory(
                phase="training step",
                device_bytes_by_part={**weights, "activations": scaled(1.5), "a new part": scaled(1.13)},
                host_bytes=444 * MIB,
                disk_bytes=0,
            ),
        ),
        "worst_phase": "training step",
        "allocated_bytes": scaled(25.05),
        "reserved_bytes": scaled(25.43),
        "process_low_bytes": scaled(24.1),
        "process_bytes": scaled(25.77),
        "process_high_bytes": scaled(28.35),
        "usable_bytes": usable_bytes,
        "error_band": 0.045,
        "verdict": _verdict(scaled(24.1), scaled(28.35), usable_bytes),
        "largest": (Tensor(part="frozen weights", num_bytes=72 * MIB, count=114),),
        "assumptions": ("captions are padded",),
        "notes": ("the autoencoder is not traced",),
        "traces": ("flux.1-dev.lora 931713ef",),
    }
    return Plan.model_validate({**fields, **changes})


def _verdict(low_bytes: int, high_bytes: int, usable_bytes: int) -> Verdict:
    if high_bytes <= usable_bytes:
        return "fits"
    return "does not fit" if low_bytes > usable_bytes else "tight"


@pytest.fixture(scope="module")
def on_all() -> list[Plan]:
    return [a_plan(name) for name in catalog.devices()]


def test_nothing_is_run_and_nothing_is_fetched(on_all: list[Plan]) -> None:
    document = plan_page(on_all)
    page = Page(document)
    names = {element.name for element in page.root.find("*")}
    assert not names & {"script", "link", "iframe", "object", "embed", "img", "form", "base", "image", "use"}
    policy = [e.attributes["content"] for e in page.root.find("meta") if "http-equiv" in e.attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"]
    assert not re.search(r"(?i)(https?:|url\(|@import|//[a-z])", document)
    for element in page.root.find("*"):
        assert not [name for name in element.attributes if name.startswith("on") or name == "src"]
        assert element.attributes.get("href", "#").startswith("#")


def test_hostile_names_come_out_as_text() -> None:
    evil = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
    remedy = Remedy(
        kind="other", settings={evil: evil}, process_bytes=GIB, saves_bytes=GIB, extra_flops_share=0.33,
        changes_the_result=True, verdict="fits",
    )  # fmt: skip
    phase = PhaseMemory(phase=evil, device_bytes_by_part={evil: 25 * GIB})
    plans = [
        a_plan(
            evil, model=model, experiment=evil, phases=(phase,), worst_phase=evil, verdict="does not fit",
            largest=(Tensor(part=evil, num_bytes=1, count=1),), remedies=(remedy,), smallest_device=evil,
            assumptions=(evil,), notes=(evil,), traces=(evil,),
        )
        for model in (evil, "another")
    ]  # fmt: skip
    document = plan_page(plans, {evil: evil})
    page = Page(document)
    assert "<script" not in document
    assert "<img" not in document
    assert not page.root.find("script") + page.root.find("img")
    assert not [e for e in page.root.find("*") if "onerror" in e.attributes]
    assert page.root.find("h2")[1].text in (evil, "another")
    assert f"{evil}={evil}" in [code.text for code in page.root.find("code")]


def test_every_phase_and_device_is_there_with_its_figures(on_all: list[Plan]) -> None:
    page = Page(plan_page(on_all))
    rows = [[cell.text for cell in row.children] for row in page.root.find("tr")]
    for plan in on_all:
        (row,) = [row for row in rows if row[0] == catalog.device(plan.device).title and len(row) == 7]
        assert row[1].endswith(f" {plan.verdict}")
        figures = (plan.usable_bytes, plan.allocated_bytes, plan.reserved_bytes, plan.process_bytes)
        assert row[2:6] == [bytes_text(figure) for figure in figures]
        assert row[6] == f"{bytes_text(plan.process_low_bytes)} to {bytes_text(plan.process_high_bytes)}"
    phases = on_all[0].phases
    assert ["", *(phase.phase for phase in phases)] in rows
    assert ["Device memory", *(bytes_text(phase.device_bytes) for phase in phases)] in rows
    assert ["Host memory", *(bytes_text(phase.host_bytes or 0) for phase in phases)] in rows
    assert ["Disk", "not known", "33.00 GiB", "–"] in rows
    assert ["a new part", "–", "–", bytes_text(phases[2].device_bytes_by_part["a new part"])] in rows
    assert ["frozen weights", "72.00 MiB", "114", bytes_text(72 * 114 * MIB)] in rows


@pytest.mark.parametrize("scale", [0.02, 1.0, 40.0])
def test_bars_are_to_scale(on_all: list[Plan], scale: float) -> None:
    plans = [a_plan(plan.device, scale=scale) for plan in on_all]
    for svg in Page(plan_page(plans)).root.find("svg"):
        bars = svg.find("g", "bar")
        assert [bar.attributes["data-phase"] for bar in bars] == [phase.phase for phase in plans[0].phases]
        longest = max(bars, key=lambda bar: sum(rect.number("width") for rect in bar.find("rect")))
        px_per_byte = sum(r.number("width") for r in longest.find("rect")) / plans[0].phases[2].device_bytes
        left_px = bars[0].find("rect")[0].number("x")
        for bar, phase in zip(bars, plans[0].phases, strict=True):
            drawn = {r.attributes["data-part"]: int(r.attributes["data-bytes"]) for r in bar.find("rect")}
            assert drawn == phase.device_bytes_by_part
            x_px = left_px
            for rect in bar.find("rect"):
                assert rect.number("x") == pytest.approx(x_px, abs=0.02)
                assert rect.number("width") == pytest.approx(int(rect.attributes["data-bytes"]) * px_per_byte, abs=0.02)
                x_px += rect.number("width")
        usable = {
            f"{catalog.device(p.device).title}: {bytes_text(p.usable_bytes)} usable": p.usable_bytes for p in plans
        }
        lines = svg.find("line", "device")
        assert lines
        for line in lines:
            assert line.number("x1") - left_px == pytest.approx(usable[line.text] * px_per_byte, rel=2e-3, abs=0.02)


@pytest.mark.parametrize("scale", [0.02, 0.4, 1.0, 3.0, 12.0, 40.0])
def test_names_of_33_devices_do_not_overlap(on_all: list[Plan], scale: float) -> None:
    document = plan_page([a_plan(plan.device, scale=scale) for plan in on_all])
    for svg in Page(document).root.find("svg"):
        width_px = float(svg.attributes["viewbox"].split()[2])
        names = [text for text in svg.find("text", "device-name") if "text-anchor" not in text.attributes]
        boxes = [
            (t.number("x"), t.number("x") + len(t.text) * 0.55 * t.number("font-size"), t.number("y"), t) for t in names
        ]
        for number, (left, right, y_px, text) in enumerate(boxes):
            assert right <= width_px, text.text
            for other_left, other_right, other_y_px, other in boxes[number + 1 :]:
                apart = abs(y_px - other_y_px) >= text.number("font-size")
                assert apart or right < other_left or other_right < left, (text.text, other.text)
            crossing = [ln for ln in svg.find("line", "device") if left < ln.number("x1") < right]
            assert all(line.number("y1") > y_px for line in crossing), text.text


def test_every_device_has_a_line_or_is_beyond_the_edge(on_all: list[Plan]) -> None:
    for svg in Page(plan_page(on_all)).root.find("svg"):
        (said,) = [text.text for text in svg.find("text", "device-name") if "text-anchor" in text.attributes]
        assert said == f"{len(on_all) - len(svg.find('line', 'device'))} devices with more →"
    few = Page(plan_page([a_plan(name) for name in ("l4", "rtx-4090", "h100-sxm")])).root.find("svg", "wide")[0]
    assert len(few.find("line", "device")) == 3


def test_near_devices_share_a_name() -> None:
    plans = [a_plan(name) for name in ("rtx-3090", "rtx-4090", "l4")]
    svg = Page(plan_page(plans)).root.find("svg", "wide")[0]
    assert [text.text for text in svg.find("text", "device-name")] == ["24 GB: L4", "24 GB: RTX 4090, RTX 3090"]


def test_the_answer_comes_first_and_the_worst_phase_is_marked() -> None:
    plans = [a_plan(name) for name in ("h100-sxm", "l4", "rtx-4090", "l40s")]
    page = Page(plan_page(plans, {plans[0].experiment: "LoRA of rank 16"}))
    answers = [item.text for item in page.root.find("ul", "answer")[0].find("li")]
    assert answers == ["✓ Fits on L40S and H100 SXM.", "✕ Does not fit on L4 and RTX 4090."]
    (lead,) = [p.text for p in page.root.find("p", "lead") if "LoRA" in p.text]
    assert lead.replace("\u00a0", " ") == "LoRA of rank 16. 1 image of 1024 × 768 px at a time, captions of 512 tokens."
    for svg in page.root.find("svg"):
        assert [text.text.split(" · ")[0] for text in svg.find("text", "worst")] == ["training step", "24.87 GiB"]


def test_remedies_and_the_smallest_device() -> None:
    remedies = (
        Remedy(
            kind="recompute", settings={"levers.gradient_checkpointing": "1"}, process_bytes=21 * GIB,
            saves_bytes=4 * GIB, extra_flops_share=0.333, changes_the_result=False, verdict="tight",
        ),
        Remedy(
            kind="host memory", settings={"levers.block_swap": "28"}, process_bytes=20 * GIB,
            saves_bytes=5 * GIB, extra_flops_share=0.0, moves_bytes=3 * GIB, least_transfer_s=0.1,
            changes_the_result=False, verdict="fits",
        ),
        Remedy(
            kind="smaller input", settings={"data.resolution": "512", "method.rank": "4"}, process_bytes=None,
            saves_bytes=6 * GIB, extra_flops_share=0.0, changes_the_result=True, verdict="fits",
        ),
    )  # fmt: skip
    plans = [a_plan("l4", remedies=remedies), a_plan("t4", smallest_device="l40s"), a_plan("h100-sxm")]
    (table,) = Page(plan_page(plans)).root.find("table", "remedies")
    assert [[cell.text for cell in row.children] for row in table.find("tr")[1:]] == [
        ["T4", "No settings found. A larger card: it fits unchanged on L40S"],
        [
            "L4",
            "levers.gradient_checkpointing=1",
            "21.0 GiB",
            "Same result: gradient checkpointing on all blocks",
            "33.3 % more computation per sample",
            "≈ tight",
        ],
        [
            "levers.block_swap=28",
            "20.0 GiB",
            "Same result: block swap, 28 blocks wait in host memory",
            "+3.0 GiB host-device traffic per step (at least 0.10 s)",
            "✓ fits",
        ],
        [
            "data.resolution=512method.rank=4",
            "saves 6.00 GiB",
            "Shorter side 512 px; rank 4",
            "no host traffic, no recomputation",
            "✓ fits",
        ],
    ]


def test_what_is_moved_stands_beside_the_devices_it_is_said_of() -> None:
    over_pcie = Transfers(
        to_host_bytes=GIB, to_device_bytes=2 * GIB, link="PCIe 4.0 x16", gb_per_s=32.0, is_link_assumed=True,
        least_s=0.5,
    )  # fmt: skip
    page = Page(plan_page([a_plan("l4", transfers=over_pcie), a_plan("m4-max-40")]))
    rows = [[cell.text for cell in row.children] for row in page.root.find("table")[1].find("tr")]
    assert rows[0][-2:] == ["Host-device traffic per step", "Least time for it"]
    assert sorted(row[-2:] for row in rows[1:]) == [["3.00 GiB", "0.50 s (PCIe 4.0 x16, assumed)"], ["–", "–"]]
    plain = Page(plan_page([a_plan("l4")]))
    assert "Host-device traffic per step" not in [cell.text for cell in plain.root.find("th")]


def test_an_overview_leads_where_models_are_several() -> None:
    plans = [
        a_plan(name, model=model, scale=scale)
        for model, scale in (("large", 3.0), ("small", 0.2), ("medium", 1.0))
        for name in ("h100-sxm", "l4")
    ]
    page = Page(plan_page(plans))
    (table,) = page.root.find("table", "overview")
    rows = [[cell.text for cell in row.children] for row in table.find("tr")]
    assert rows[0] == ["Model", "Estimated", "L4", "H100 SXM"]
    assert [row[0] for row in rows[1:]] == ["small", "medium", "large"]
    assert [row[2:] for row in rows[1:]] == [
        ["✓fits", "✓fits"],
        ["✕does not fit", "✓fits"],
        ["✕does not fit", "≈tight"],
    ]
    ids = {e.attributes["id"] for e in page.root.find("section") if "id" in e.attributes}
    assert {link.attributes["href"].lstrip("#") for link in page.root.find("a")} == ids
    assert not Page(plan_page(plans[:2])).root.find("table", "overview")


def test_a_part_has_one_colour_over_the_whole_page() -> None:
    plans = [a_plan("l4"), a_plan("l4", model="sdxl", scale=0.3)]
    page = Page(plan_page(plans))
    colours: dict[str, set[str]] = {}
    for rect in page.root.find("rect", "part"):
        colours.setdefault(rect.attributes["data-part"], set()).add(rect.attributes["class"])
    assert len(colours) == 5
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 5


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_text_can_be_read_on_what_is_behind_it() -> None:
    style = Page(plan_page([a_plan()])).root.find("style")[0].text
    schemes: list[dict[str, str]] = [{}, {}]
    for block in re.finditer(r"(@media screen[^{]*\{)?:root\{([^}]*)\}", style):
        schemes[bool(block[1])] |= dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", block[2]))
    for scheme in schemes:
        full = {name: c if len(c) == 7 else "#" + "".join(2 * digit for digit in c[1:]) for name, c in scheme.items()}
        pairs = [(ink, "paper") for ink in ("ink", "soft", "fits", "tight", "fails")]
        pairs += [(verdict, f"{verdict}-panel") for verdict in ("fits", "tight", "fails")]
        pairs += [(name.replace("c", "i"), name) for name in full if re.fullmatch(r"c\d+", name)]
        assert len(pairs) == 26
        for ink, behind in pairs:
            assert _contrast(full[ink], full[behind]) >= 4.5, (ink, behind)


def test_devices_with_other_phases_have_their_own_chart() -> None:
    cuda = a_plan("l4")
    host = a_plan("laptop-cpu-8core", phases=cuda.phases[1:])
    page = Page(plan_page([cuda, host]))
    assert len(page.root.find("figure")) == 2
    titles = [h3.text for h3 in page.root.find("h3")]
    assert {"On L4", "On Laptop CPU, 8 cores AVX2", "Phases on L4"} <= set(titles)


def test_charts_say_in_words_what_they_show(on_all: list[Plan]) -> None:
    page = Page(plan_page(on_all))
    ids = [e.attributes["id"] for e in page.root.find("*") if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for svg in page.root.find("svg"):
        title, description = svg.find("title")[0], svg.find("desc")[0]
        assert svg.attributes["aria-labelledby"].split() == [title.attributes["id"], description.attributes["id"]]
        for phase in on_all[0].phases:
            assert f"{phase.phase} {bytes_text(phase.device_bytes)}" in description.text


def test_36_models_on_all_devices_stay_small(on_all: list[Plan]) -> None:
    plans = [a_plan(plan.device, model=f"model-{i}", scale=i / 12) for i in range(36, 0, -1) for plan in on_all]
    document = plan_page(plans)
    assert len(document.encode()) < 2_000_000
    assert len(Page(document).root.find("section")) == 37
    assert document == plan_page(plans[::-1]), "the order in which plans come does not matter"


def test_no_plan_is_a_mistake_of_the_user() -> None:
    with pytest.raises(NothingPlanned, match="at least one model"):
        plan_page([])
