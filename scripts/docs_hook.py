"""mkdocs hook: the op pages, the separation matrix and the command line's page are made here.

`make docs` runs `kdtr score` first, which runs every mutant anew: no page can be out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kdtr import cli_page, contract, op_page

MATRIX = ROOT / "build" / "separation_matrix.md"
FAULTS = (
    "Kernels with one fault each, against every case. A cell is the greatest error as a multiple "
    "of the hard budget; `X` is a wrong integer or a broken rule, `.` no error. Bold: the case "
    "rejects the kernel. [Why](../judging.md#who-judges-the-judge)."
)
MISSING = "This site was built without it: `make docs` runs `kdtr score` first."


def separation() -> dict[str, str]:
    """Op id to its part of the report of `kdtr score`; empty when it was not made."""
    if not MATRIX.exists():
        return {}
    parts = re.split(r"^### (\S+)\n", MATRIX.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def summary(matrix: dict[str, str]) -> str:
    """A page with a row for each op: its faults, and by how many cases the luckiest is caught."""
    lines = ["# Separation matrix", "", *([] if matrix else [MISSING])]
    if matrix:
        lines += ["Every kernel with a planted fault must be rejected by a case.", ""]
        lines += ["| op | planted faults | fewest cases that reject one |", "|---|--:|--:|"]
    for name, text in matrix.items():
        op = name.partition("@")[0]
        rows = re.findall(r"^\| `(\S+)` \|.*\| (\d+) \|$", text, re.MULTILINE)
        kills = [int(count) for mutant, count in rows if mutant != "correct"]
        lines.append(f"| [`{name}`](ops/{op}.md#planted-faults) | {len(kills)} | {min(kills)} |")
    return "\n".join(lines) + "\n"


def generated() -> dict[str, str]:
    """Page path, below `docs/`, to Markdown."""
    matrix = separation()
    pages = {"separation_matrix.md": summary(matrix)}
    for op in contract.ops():
        faults = matrix.get(contract.load(op).id, MISSING)
        pages[f"ops/{op}.md"] = f"{op_page.page(op)}\n## Planted faults\n\n{FAULTS}\n\n{faults}\n"
    pages["ops/index.md"] = op_page.index()
    pages["reference/cli.md"] = cli_page.page()
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to the site."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    for name in ("kdtr.mjs", "viewer.mjs"):
        source = str(ROOT / "readers" / "js" / name)
        files.append(File.generated(config, f"assets/{name}", abs_src_path=source))
    return files


def on_config(config: Any) -> Any:
    """Fill the navigation's empty sections."""
    decisions = sorted(p.name for p in (ROOT / "docs" / "decisions").glob("*.md"))
    for section in config["nav"]:
        if "Decisions" in section:
            section["Decisions"] = [f"decisions/{name}" for name in decisions]
        if "Ops" in section:
            section["Ops"] = ["ops/index.md", *(f"ops/{op}.md" for op in contract.ops())]
    return config
