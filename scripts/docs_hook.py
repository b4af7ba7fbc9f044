"""mkdocs hook: the op pages and the command line's page are made while the site is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kdtr import cli_page, contract, op_page

MATRIX = Path(__file__).resolve().parent.parent / "build" / "separation_matrix.md"
"""Written by `kdtr score`, which runs every mutant anew: the page cannot be out of date."""


def generated() -> dict[str, str]:
    """Page path, below `docs/`, to Markdown."""
    pages = {f"ops/{op}.md": op_page.page(op) for op in contract.ops()}
    pages["ops/index.md"] = op_page.index()
    pages["reference/cli.md"] = cli_page.page()
    pages["separation_matrix.md"] = (
        MATRIX.read_text(encoding="utf-8")
        if MATRIX.exists()
        else "# Separation matrix\n\nThis site was built without it: `make docs` runs "
        "`kdtr score` first.\n"
    )
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to the site."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: Any) -> Any:
    """Fill the navigation's empty section Ops."""
    for section in config["nav"]:
        if "Ops" in section:
            section["Ops"] = ["ops/index.md", *(f"ops/{op}.md" for op in contract.ops())]
    return config
