#!/bin/sh
# Takes the pictures of the README and of docs/reports.md again, from a demo that was really run, on an idle machine:
#   foretune demo --no-open --folder foretune-demo
#   foretune report foretune-demo/demo/lora -o foretune-demo/one.html
#   sh docs/pictures/retake.sh foretune-demo/report.html foretune-demo/one.html
set -eu
page=$(realpath "$1")
one=$(realpath "$2")
here=$(realpath "$(dirname "$0")")
work=$(mktemp -d)
# The samples by themselves: a screenshot begins at the top of a page.
python3 - "$page" "$work/samples.html" <<'PYTHON'
import re, sys
from pathlib import Path
text = Path(sys.argv[1]).read_text(encoding="utf-8")
head = text[: text.index("<body>")]
section = re.search(r'<section id="samples".*?</section>', text, re.DOTALL)
Path(sys.argv[2]).write_text(f"{head}<body><main>{section[0]}</main></body></html>", encoding="utf-8")
PYTHON
shot() { # page, file, width, height
    chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$work/profile" \
        --blink-settings=preferredColorScheme=1 --window-size="$3,$4" --screenshot="$here/$2" "file://$1"
}
shot "$page" demo-report.png 980 960
shot "$work/samples.html" demo-samples.png 840 716
shot "$one" report.png 980 1222
rm -r "$work"
