"""The viewer shows a file in a real browser, and a hostile one without running it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from kdtr import container

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
READERS = Path(__file__).resolve().parent.parent / "readers" / "js"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
PAGE = """<!doctype html><meta charset="utf-8"><div id="root"></div><script type="module">
import { view } from "./viewer.mjs";
const bytes = new Uint8Array(await (await fetch("file.kdtr")).arrayBuffer());
view(document.getElementById("root"), "file.kdtr", bytes);
document.querySelectorAll("button").forEach((b) => b.click());
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        return "text/javascript" if str(path).endswith(".mjs") else super().guess_type(path)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("kdtr.mjs", "viewer.mjs"):
        shutil.copy(READERS / name, folder)
    (folder / "index.html").write_text(PAGE)
    serve = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def dom(tmp_path: Path, address: str) -> str:
    """The page after its scripts ran."""
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=5000", "--no-first-run", "--disable-background-networking"),
            *(f"--user-data-dir={tmp_path / 'profile'}", address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_values_and_statistics_are_shown(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    values = np.array([[0.5, -2.0], [np.inf, 7.25]], np.float32)
    container.write(folder / "file.kdtr", {"x": values}, {"op": "toy@1"}, {"x": {"role": "input"}})
    text = dom(tmp_path, address)
    assert "least -2, greatest 7.25" in text
    assert "4 elements, 0 NaN, 1 infinite" in text
    assert "<td>[1, 1]</td><td>7.25</td>" in text
    assert "toy@1" in text


def test_names_are_text_not_markup(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    name = "<img src=x onerror=document.title=1>"
    container.write(folder / "file.kdtr", {name: np.zeros(1)}, {"note": "<b>bold</b>"}, {})
    text = dom(tmp_path, address)
    assert "&lt;img src=x" in text
    assert "<b>bold</b>" not in text


def test_a_broken_file_names_its_rule(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = site
    container.write(folder / "file.kdtr", {"x": np.zeros(4)}, {}, {})
    data = bytearray((folder / "file.kdtr").read_bytes())
    data[600] = 1
    (folder / "file.kdtr").write_bytes(data)
    assert "E_PADDING at byte 544" in dom(tmp_path, address)
    data[8] = 2
    (folder / "file.kdtr").write_bytes(data)
    assert "E_VERSION at byte 8" in dom(tmp_path, address)
