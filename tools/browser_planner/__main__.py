"""Adds the planner to a built documentation site: python -m tools.browser_planner site."""

import argparse
import sys
from pathlib import Path

from foretune.core.errors import UserError
from tools.browser_planner.assembling import assemble
from tools.browser_planner.modules import ROOT

BUILD = ROOT / "build" / "browser_planner"
"""Downloads and what was made of them; git-ignored."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.browser_planner", description=__doc__)
    parser.add_argument("site", type=Path, help="the folder that `zensical build` wrote")
    parser.add_argument("--answers", type=int, help="compute so many answers in advance, not all", metavar="N")
    parser.add_argument("--build", type=Path, default=BUILD, help="folder for downloads", metavar="FOLDER")
    wanted = parser.parse_args()
    try:
        for line in assemble(wanted.site / "planner", wanted.build, wanted.answers):
            print(line)  # noqa: T201 - what a person reads
    except UserError as error:
        sys.exit(f"planner: {error}")


if __name__ == "__main__":
    main()
