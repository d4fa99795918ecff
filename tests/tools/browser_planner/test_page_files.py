"""The planner's page as it is written: its policy, what its scripts may do, and what it is served with."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tools.browser_planner.assembling import write_style
from tools.browser_planner.downloads import NotDownloaded, download_all
from tools.browser_planner.modules import ROOT, needed_modules
from tools.browser_planner.packing import model_of_trace

PAGE = ROOT / "docs" / "planner"
HTML = (PAGE / "index.html").read_text(encoding="utf-8")
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in PAGE.glob("*.js")}
# What turns text into markup or code.
DANGEROUS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
             "createContextualFragment", "setHTMLUnsafe")  # fmt: skip


def test_the_policy_allows_this_site_alone() -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', HTML)
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == ["'self'", "'wasm-unsafe-eval'"]
    assert rules["connect-src"] == rules["style-src"] == ["'self'"]
    assert rules["base-uri"] == rules["form-action"] == ["'none'"]
    allowed = {source for sources in rules.values() for source in sources}
    assert allowed == {"'none'", "'self'", "'wasm-unsafe-eval'", "blob:", "data:"}
    assert HTML.index("Content-Security-Policy") < HTML.index("<link") < HTML.index("<script")


def test_nothing_of_the_page_is_from_elsewhere() -> None:
    for name, text in {"index.html": HTML, **SCRIPTS}.items():
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not addresses, f"{name} names {addresses}"
    assert not re.search(r"\son\w+=|\sstyle=|<style", HTML), "inline scripts and styles are against the policy"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_markup_or_code_of_text(name: str) -> None:
    assert [word for word in DANGEROUS if word in SCRIPTS[name]] == []


def test_every_element_that_the_script_names_is_on_the_page() -> None:
    named = set(re.findall(r'byId\("([\w-]+)"\)', SCRIPTS["planner.js"]))
    assert named <= set(re.findall(r'\bid="([\w-]+)"', HTML)), named
    fields = re.search(r"const FIELDS = (\[.*?\]);", SCRIPTS["planner.js"])
    assert fields is not None
    assert set(json.loads(fields[1])) == set(re.findall(r'<(?:select|input)[^>]*\bname="(\w+)"', HTML))


def test_the_style_has_the_colours_of_reports(tmp_path: Path) -> None:
    write_style(tmp_path)
    style = (tmp_path / "report.css").read_text(encoding="utf-8")
    assert ".figures dt" in style
    assert ".verdict.fits" in style
    assert ".c0{" in style


def test_served_packages_have_the_versions_that_tests_run_with() -> None:
    """And hashes, but no addresses."""
    served = (ROOT / "tools" / "browser_planner" / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in served.splitlines() if not line.startswith("#")]
    pinned = (ROOT / "constraints" / "dev.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"[\w-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", line)
        assert line.split()[0] in pinned
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[^\w-]", line)[0].lower() for line in lines}
    # Both are for the terminal alone.
    assert {re.split(r"[^\w-]", name)[0] for name in core} - names == {"rich", "typer"}


def test_what_is_served_leaves_out_what_cannot_run_there() -> None:
    modules = needed_modules()
    assert {"tools.browser_planner.answering", "foretune.api.plan", "foretune.planner.advice"} <= set(modules)
    assert not any(re.match(r"foretune\.(step|models|trace\.live|cli|executors|measure|sweeps)\b", m) for m in modules)


def test_a_trace_belongs_to_one_model_or_to_all() -> None:
    assert model_of_trace("sd3.5-large.lora.bf16.kept.xz") == "sd3.5-large"
    assert model_of_trace("t5-v1_1-xxl-encoder.text.bf16.xz") is None
    assert model_of_trace("geometry.json") is None


def test_a_download_that_is_not_what_was_pinned_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyodide-314.0.7.tgz").write_bytes(b"something else")
    with pytest.raises(NotDownloaded, match="has the SHA-256"):
        download_all(tmp_path)


def test_without_a_network_the_build_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("npm", "node"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho 'getaddrinfo ENOTFOUND' >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    with pytest.raises(NotDownloaded, match="Pyodide could not be downloaded, so the site has no planner") as caught:
        download_all(tmp_path / "downloads")
    assert "ENOTFOUND" in str(caught.value)
