"""The page of a search: what stands in it, and that points do not hide each other's names."""

from functools import cache

import foretune as ft
from foretune.api.recommend import Recommended
from foretune.reports.search_figure import NARROW, NUM_COLOURS, WIDE, PlotFrame, chart_of_search, draw_search
from foretune.reports.search_page import search_page
from tests.reports.pages import Node, Page, dangers


@cache
def searched() -> Recommended:
    return ft.recommend(
        "sd3-medium",
        {"levers.block_swap": 0},
        goal="cheapest",
        on="rtx-3090,rtx-4090,l4,h100-sxm,b200",
        deadline="2h",
        budget=6,
        draws=True,
    )


def page() -> Page:
    return Page(search_page(searched().asked, searched().answer))


def drawing(frame: PlotFrame) -> Node:
    return Page(draw_search(chart_of_search(searched().answer), frame, "x")).root


def test_the_page_has_no_scripts_and_nothing_from_elsewhere() -> None:
    assert dangers(searched().page()) == []
    assert searched().page() == searched().page()


def test_the_recommendation_is_the_title_the_largest_point_and_the_first_row() -> None:
    answer = searched().answer
    (heading,) = page().root.find("h1")
    assert answer.best.plan.device in heading.text
    for frame in (WIDE, NARROW):
        (best,) = drawing(frame).find("circle", class_="best")
        assert best.attributes["class"] == "best d0"
        assert all(
            float(best.attributes["r"]) > float(other.attributes["r"])
            for other in drawing(frame).find("circle")
            if other.attributes["class"] != best.attributes["class"]
        )
        (name,) = drawing(frame).find("text", class_="best")
        assert name.text.startswith(f"Recommended: {answer.best.plan.device}")
    rows = page().root.find("tbody")[0].find("tr")
    assert "(recommended)" in rows[0].text
    assert "(runner-up)" in rows[1].text
    assert len(rows) == len({id(one) for one in (answer.best, answer.runner_up, *answer.front)})


def test_limits_and_bands_are_drawn() -> None:
    for frame in (WIDE, NARROW):
        root = drawing(frame)
        assert len(root.find("line", class_="limit")) == 2
        assert [node.text for node in root.find("text", class_="limit-name")] == ["deadline 2 h 00 min", "budget $6.00"]
        band = root.find("line", class_="error")[0].attributes
        # Longer is to the right, dearer is up.
        assert float(band["x1"]) < float(band["x2"])
        assert float(band["y1"]) > float(band["y2"])


def test_a_cheaper_or_faster_point_is_nearer_to_the_corner() -> None:
    circles = drawing(WIDE).find("circle")
    at = {node.text.split(":")[0]: (float(node.attributes["cx"]), float(node.attributes["cy"])) for node in circles}
    front = [choice for choice in searched().answer.front if choice.usd]
    names = [f"{one.plan.world_size} x {one.plan.device}".removeprefix("1 x ") for one in front]
    assert len(set(names)) >= 2
    places = [at[name] for name in names if names.count(name) == 1]
    assert places == sorted(places), "the front goes from fast and dear to slow and cheap"
    assert [y for _, y in places] == sorted(y for _, y in places)


def test_every_dot_of_the_cloud_is_inside_the_axes() -> None:
    for frame in (WIDE, NARROW):
        paths = [path.attributes["d"] for path in drawing(frame).find("path") if "dots" in path.attributes["class"]]
        dots = [tuple(map(int, dot.removesuffix("h0").split())) for path in paths for dot in path.split("M")[1:]]
        assert len(dots) > 50
        assert all(frame.left_px - 1 <= x <= frame.width_px and 0 <= y <= frame.height_px for x, y in dots)


def test_labels_do_not_cover_each_other() -> None:
    for frame in (WIDE, NARROW):
        boxes = []
        for node in drawing(frame).find("text"):
            if node.attributes["class"].split()[0] not in ("name", "limit-name"):
                continue
            width = len(node.text) * frame.font_px * 0.5
            x, y = float(node.attributes["x"]), float(node.attributes["y"])
            left = x - {"start": 0.0, "end": width, "middle": width / 2}[node.attributes["text-anchor"]]
            boxes.append((left, y - frame.font_px, left + width, y))
        assert len(boxes) >= 3
        for number, one in enumerate(boxes):
            for other in boxes[number + 1 :]:
                assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_devices_have_colours_of_their_own() -> None:
    colours = chart_of_search(searched().answer).colours
    assert len(colours) <= NUM_COLOURS
    assert len(set(colours.values())) == len(colours)
    sheet = searched().page()
    assert all(f"--d{number}:" in sheet for number in range(NUM_COLOURS))


def test_without_a_price_the_page_says_what_is_missing() -> None:
    found = ft.recommend("sd3-medium", {"levers.block_swap": 0}, goal="fastest", on="rtx-3060", num_devices=[1])
    root = Page(found.page()).root
    assert not root.find("svg")
    assert "--price DEVICE=USD" in root.text
