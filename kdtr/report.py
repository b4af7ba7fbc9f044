"""Results as one HTML page that needs nothing else: no script from elsewhere, no font, no image.

The input is what `kdtr-conform run --json` writes, one file for each engine, and the JSON of
`kdtr score` for the separation matrix.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdtr.diff_report import png
from kdtr.errors import KdtrError

Case = Mapping[str, Any]

_GOOD = ("PASS", "QUALITY_WARNING")
_IDLE = ("NOT_SUPPORTED", "SKIP", "WAIVED", "XFAIL")


@dataclass(frozen=True)
class Results:
    """One results file: the engine and what became of each case."""

    path: str
    engine: Mapping[str, Any]
    cases: Sequence[Case]

    @property
    def name(self) -> str:
        """What the engine was called on the command line."""
        return str(self.engine.get("spec", self.path))


def load(path: Path) -> Results:
    """Read a file of JSON lines. Raises KdtrError when it is none, or holds no case."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except OSError as error:
        raise KdtrError(str(path), "cannot be read", got=error.strerror) from None
    except ValueError as error:
        raise KdtrError(str(path), "is not JSON lines", got=error) from None
    records = [one for one in lines if isinstance(one, dict)]
    engine = next((one for one in records if one.get("kind") == "engine"), {})
    cases = [one for one in records if one.get("kind") == "case"]
    if not cases:
        raise KdtrError(str(path), "results of kdtr-conform", "a line of kind case", "none")
    results = Results(str(path), engine, cases)
    with _shown_whole(path):
        page([results]).encode()
    return results


@contextmanager
def _shown_whole(path: Path) -> Iterator[None]:
    """Raise KdtrError for a file in which a page lacks something."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise KdtrError(str(path), "is not whole, or of another program", got=what) from None


def load_matrix(path: Path) -> Mapping[str, Any]:
    """Read the JSON of `kdtr score`. Raises KdtrError."""
    try:
        matrix = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KdtrError(str(path), "cannot be read as JSON", got=error) from None
    if not isinstance(matrix, dict) or "ops" not in matrix:
        raise KdtrError(str(path), "a separation matrix", "the JSON of kdtr score", "another file")
    with _shown_whole(path):
        "".join(_matrix(matrix)).encode()
    return matrix


def page(results: Sequence[Results], matrix: Mapping[str, Any] | None = None) -> str:
    """The page, as text."""
    parts = [_HEAD, "<h1>kdtr results</h1>"]
    for one in results:
        parts += _engine(one)
    parts += _verdicts(results)
    for one in results:
        parts += _findings(one)
    for one in results:
        parts += _steps(one)
    if matrix is not None:
        parts += _matrix(matrix)
    data = [{"engine": one.engine, "cases": [_brief(c) for c in one.cases]} for one in results]
    text = json.dumps(data).replace("<", "\\u003c")
    parts.append(f'<script type="application/json" id="data">{text}</script>')
    parts.append(_SCRIPT)
    return "\n".join(parts) + "\n</body></html>\n"


def _brief(case: Case) -> dict[str, Any]:
    return {key: case.get(key) for key in ("case", "status", "worst_gate", "worst_hard", "root")}


def _text(value: object) -> str:
    return html.escape(str(value))


def _number(value: object) -> float:
    """A number as the judge writes it: infinities and NaN are text."""
    return float(value) if isinstance(value, (int, float, str)) else math.nan


def _ratio(value: object) -> str:
    x = _number(value)
    return "" if x == 0 else "∞" if math.isinf(x) else f"{x:.3g}"


def _kind(status: str) -> str:
    return (
        "good"
        if status == "PASS"
        else "warn"
        if status in _GOOD
        else ("idle" if status in _IDLE else "bad")
    )


def _counts(cases: Iterable[Case]) -> str:
    tally = Counter(str(case["status"]) for case in cases)
    return ", ".join(f"<b class={_kind(s)}>{n} {_text(s)}</b>" for s, n in sorted(tally.items()))


def _engine(one: Results) -> Iterator[str]:
    engine = one.engine
    told = [
        f"{engine.get('name', '')} {engine.get('version', '')}",
        f"on {engine['device']}" if engine.get("device") else "",
        str(engine.get("build", "")),
        f"profiles {engine['profiles']}" if engine.get("profiles") else "",
        f"sha256 {str(engine['sha256'])[:16]}" if engine.get("sha256") else "",
    ]
    yield f"<section><h2><code>{_text(one.name)}</code></h2>"
    yield f"<p>{' · '.join(_text(t.strip()) for t in told if t.strip())}</p>"
    yield f"<p>{len(one.cases)} cases: {_counts(one.cases)}</p>"
    yield '<table class="sum"><tr><th>op<th>cases<th>worst / gate<th>worst / hard<th>verdict</tr>'
    ops: dict[str, list[Case]] = {}
    for case in one.cases:
        ops.setdefault(str(case["op"]), []).append(case)
    for op, cases in sorted(ops.items()):
        ran = [c for c in cases if c["status"] in _GOOD]
        gate, hard = (
            max((_number(c[key]) for c in ran), default=0.0) for key in ("worst_gate", "worst_hard")
        )
        failed = any(c["status"] not in _GOOD + _IDLE for c in cases)
        exact = "exact" if ran and not failed else "-"
        yield (
            f"<tr><td>{_text(op)}<td class=n>{len(cases)}<td class=n>{_ratio(gate) or exact}"
            f"<td class=n>{_ratio(hard) or exact}<td>{_counts(cases)}</tr>"
        )
    yield "</table></section>"


def _verdicts(results: Sequence[Results]) -> Iterator[str]:
    """Every case, one column an engine: verdict, and the worst error over the hard budget."""
    table: dict[str, list[Case | None]] = {}
    for column, one in enumerate(results):
        for case in one.cases:
            table.setdefault(str(case["case"]), [None] * len(results))[column] = case
    yield "<section><h2>Cases</h2>"
    yield '<p><input id="filter" type="search" placeholder="filter" aria-label="filter cases"> '
    yield '<label><input id="bad" type="checkbox"> only what did not pass</label></p>'
    yield "<p>The bar is the greatest error of the case; full length is the hard budget, and the "
    yield "line is about where the gate lies.</p>"
    heads = "".join(f"<th colspan=2>{_text(one.name)}" for one in results)
    yield f'<table id="cases"><thead><tr><th>case{heads}</tr></thead><tbody>'
    for name, row in sorted(table.items()):
        cells = "".join(_cell(case) for case in row)
        poor = any(c is not None and c["status"] not in _GOOD for c in row)
        caught = next((str(c["catches"]) for c in row if c is not None and c.get("catches")), "")
        yield f'<tr data-bad="{int(poor)}"><td title="{_text(caught)}">{_text(name)}{cells}</tr>'
    yield "</tbody></table></section>"


def _cell(case: Case | None) -> str:
    if case is None:
        return "<td class=idle>–<td>"
    status = str(case["status"])
    hard, gate = _number(case["worst_hard"]), _number(case["worst_gate"])
    bar = ""
    if 0 < hard < math.inf:
        mark = f'<u style="left:{min(100.0, 100 * hard / gate):.1f}%"></u>' if gate > 0 else ""
        bar = f'<span class=bar><i style="width:{min(100.0, 100 * hard):.1f}%"></i>{mark}</span>'
        bar += f" hard {hard:.3g}, gate {gate:.3g}"
    return f"<td class={_kind(status)}>{_text(status)}<td>{bar}"


def _findings(one: Results) -> Iterator[str]:
    poor = [c for c in one.cases if c["status"] not in (*_IDLE, "PASS")]
    idle = [c for c in one.cases if c["status"] in _IDLE]
    if poor:
        yield f"<section><h2>Findings: <code>{_text(one.name)}</code></h2>"
    for case in poor:
        status = str(case["status"])
        yield f"<details open><summary><b class={_kind(status)}>{_text(status)}</b> "
        yield f"{_text(case['case'])}</summary>"
        if case.get("diagnosis"):
            yield "<p class=why>" + "<br>".join(_text(d) for d in case["diagnosis"]) + "</p>"
        yield "<pre>" + "\n".join(_text(line) for line in case.get("findings", ())) + "</pre>"
        if case.get("catches"):
            yield f"<p>This case catches: {_text(case['catches'])}</p>"
        for output in case.get("outputs", ()):
            yield from _output(output)
        if case.get("again"):
            yield f"<p>Again: <code>{_text(case['again'])}</code></p>"
        yield "</details>"
    if poor:
        yield "</section>"
    if idle:
        yield f"<section><h2>Not judged: <code>{_text(one.name)}</code></h2><table>"
        reasons = Counter(
            (str(c["op"]), str(c["status"]), str(next(iter(c.get("findings", ())), "")))
            for c in idle
        )
        for (op, status, why), count in sorted(reasons.items()):
            yield f"<tr><td>{_text(op)}<td class=n>{count}<td>{_text(status)}<td>{_text(why)}</tr>"
        yield "</table></section>"


def _output(output: Mapping[str, Any]) -> Iterator[str]:
    heat = output.get("heat")
    if not heat:
        return
    image = base64.b64encode(png(heat)).decode()
    name = _text(output["output"])
    shape = "×".join(str(n) for n in output.get("shape", ()))
    yield (
        f"<figure><figcaption><code>{name}</code> [{shape}]: {output['mismatches']} of "
        f"{output['elements']} wrong; rows down, the last axis across</figcaption>"
        f'<img alt="where {name} is wrong" src="data:image/png;base64,{image}"></figure>'
    )


def _steps(one: Results) -> Iterator[str]:
    """Distances on the output's grid, over all class B outputs of each op."""
    sums: dict[str, list[int]] = {}
    for case in one.cases:
        for output in case.get("outputs", ()):
            counts = output.get("steps", ())
            total = sums.setdefault(f"{case['op']} {output['output']}", [])
            total += [0] * (len(counts) - len(total))
            for at, count in enumerate(counts):
                total[at] += int(count)
    sums = {name: counts for name, counts in sums.items() if sum(counts)}
    if not sums:
        return
    yield f"<section><h2>ULP histogram: <code>{_text(one.name)}</code></h2>"
    yield "<p>Elements by their distance from the rounded gold, in steps of the output's type. "
    yield "The bars are logarithmic.</p>"
    for name, counts in sorted(sums.items()):
        top = math.log1p(max(counts))
        yield f"<table class=bars><caption>{_text(name)}</caption>"
        for at, count in enumerate(counts):
            label = str(at) if at < 3 else f"{2 ** (at - 2) + 1}–{2 ** (at - 1)}"
            width = 0 if count == 0 else max(1, round(260 * math.log1p(count) / top))
            yield f'<tr><td class=n>{label}<td><i style="width:{width}px"></i> {count}</tr>'
        yield "</table>"
    yield "</section>"


def _matrix(matrix: Mapping[str, Any]) -> Iterator[str]:
    yield "<section><h2>Separation matrix</h2>"
    yield f"<p>{matrix['killed']} killed, {matrix['survived']} survived. One row for each kernel "
    yield "with a planted fault, one column for each case; dark where the case rejects it. "
    yield "A cell's title has the greatest error over the hard budget.</p>"
    for op in matrix["ops"]:
        yield f"<details><summary>{_text(op['op'])}: {len(op['mutants'])} kernels, "
        yield f"{len(op['cases'])} cases</summary><div class=wide><table class=matrix>"
        for mutant in op["mutants"]:
            only = f" (only {mutant['only']})" if mutant.get("only") else ""
            yield f'<tr><td title="{_text(mutant["what"])}">{_text(mutant["mutant"])}'
            cells = []
            for case, cell in zip(op["cases"], mutant["cells"], strict=True):
                killed = cell["status"] in ("FAIL", "CRASH", "TIMEOUT")
                title = _text(f"{case}: {cell['status']} {_ratio(cell['worst_hard'])}".strip())
                cells.append(f'<td class={"k" if killed else "o"} title="{title}">')
            yield "".join(cells) + f"<td>{mutant['killed_by']}{_text(only)}</tr>"
        yield "</table></div></details>"
    yield "</section>"


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>kdtr results</title>
<meta name="viewport" content="width=device-width"><style>
:root{--fg:#222;--bg:#fff;--line:#ddd;--soft:#f4f4f4;--bad:#a00;--good:#060;--warn:#850}
@media(prefers-color-scheme:dark){:root{--fg:#ddd;--bg:#181818;--line:#333;--soft:#242424;
--bad:#f77;--good:#7c7;--warn:#eb6}}
body{font:15px/1.45 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;
color:var(--fg);background:var(--bg)}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .7em;text-align:left;
vertical-align:top}tr+tr,tbody tr{border-top:1px solid var(--line)}.n{text-align:right}
pre{background:var(--soft);padding:.7em;white-space:pre-wrap;overflow-wrap:anywhere}
summary{cursor:pointer;margin:.6em 0}.bad{color:var(--bad)}.good{color:var(--good)}
.warn{color:var(--warn)}.idle{opacity:.65}.why{font-weight:600}figure{margin:1em 0}
img{image-rendering:pixelated;border:1px solid var(--line);max-width:100%}
td:has(.bar){white-space:nowrap}.bar{position:relative;display:inline-block;width:10em;height:.7em;background:var(--soft)}
.bar i{display:block;height:100%;background:#36a}.bar u{position:absolute;top:-.1em;width:2px;
height:.9em;background:var(--warn)}.bars{display:inline-table;margin-right:3em}
.bars caption{text-align:left;font-weight:600}.bars tr{border:0!important}
.bars i{display:inline-block;height:.8em;background:#36a}.wide{overflow-x:auto}
.matrix td{padding:0 .4em;font-size:12px;white-space:nowrap}.matrix .k,.matrix .o{padding:0;
min-width:7px;border-left:1px solid var(--line)}.matrix .k{background:#922}
code{overflow-wrap:anywhere}</style></head><body>"""

_SCRIPT = """<script>
const filter = document.getElementById("filter"), bad = document.getElementById("bad");
function show() {
  const words = filter.value.toLowerCase();
  let shown = 0;
  for (const row of document.querySelectorAll("#cases tbody tr")) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(words)
      || (bad.checked && row.dataset.bad === "0");
    shown += !row.hidden;
  }
  document.body.dataset.shown = shown;
}
filter.addEventListener("input", show);
bad.addEventListener("change", show);
bad.checked = location.hash === "#bad";
show();
</script>"""
