"""A `FileDiff` for people: lines for a terminal, Markdown, one HTML page, a PNG heat map."""

from __future__ import annotations

import base64
import html
import json
import struct
import zlib
from collections.abc import Iterator

from kdtr.diff import Element, FileDiff, TensorDiff

_MARK = {"equal": "=", "within": "~", "different": "X", "incomparable": "!"}
_SHADES = " .:-=+*#%@"


def lines(diff: FileDiff, full: bool = False) -> Iterator[str]:
    """The report as plain lines; `full` lists equal tensors too."""
    if diff.identical:
        yield f"identical: {diff.want} and {diff.got} have the same root digest"
        return
    equal = sum(t.verdict == "equal" for t in diff.tensors)
    for tensor in diff.tensors:
        if tensor.verdict != "equal" or full:
            yield from _tensor_lines(tensor)
    yield from (f"- {name}: only in {diff.want}" for name in diff.removed)
    yield from (f"+ {name}: only in {diff.got}" for name in diff.added)
    yield from (f"> {old}: renamed {new} (same bytes)" for old, new in diff.renamed)
    yield from (f"m {line}" for line in diff.meta)
    different = sum(t.verdict == "different" for t in diff.tensors)
    incomparable = sum(t.verdict == "incomparable" for t in diff.tensors) + len(diff.removed)
    within = sum(t.verdict == "within" for t in diff.tensors)
    yield (
        f"{equal} equal, {within} within tolerance, {different} different, "
        f"{incomparable} NOT COMPARABLE"
        if incomparable
        else f"{equal} equal, {within} within tolerance, {different} different"
    )


def _tensor_lines(t: TensorDiff, heat: bool = True) -> Iterator[str]:
    head = f"{_MARK[t.verdict]} {t.name} {t.dtype}{t.shape}"
    if t.verdict == "incomparable":
        yield f"{head}: NOT COMPARABLE: {t.reason}"
        return
    if t.verdict == "equal":
        yield head
        return
    share = 100 * t.mismatches / max(1, t.numel)
    within = f", {t.within} within tolerance" if t.within else ""
    yield f"{head}: {t.mismatches} of {t.numel} differ ({share:.3g} %){within}"
    line = f"    max abs {t.max_abs:.6g}, mean abs {t.mean_abs:.6g}, max rel {t.max_rel:.6g}"
    if not t.integer:
        line += f", max ulp {t.max_ulp:.6g}"
    if t.ulp_quantiles:
        line += f", {'size' if t.integer else 'ulp'} of the differing " + " ".join(
            f"{k} {v:.4g}" for k, v in t.ulp_quantiles.items()
        )
    yield line
    if t.worst_over_budget is not None:
        yield f"    worst error / budget {t.worst_over_budget:.4g}"
    if t.first:
        yield f"    first {_element(t.first, t)}"
    if t.worst and t.worst != t.first:
        yield f"    worst {_element(t.worst, t)}"
    yield from (f"    where: {line}" for line in t.where if t.mismatches > 1)
    yield from (f"    why: {line}" for line in t.why)
    if t.smallest:
        ulp = "" if t.integer else f" or ulp {t.smallest['ulp']:.6g}"
        yield f"    smallest tolerance that passes: atol {t.smallest['atol']:.9g}{ulp}"
    if (
        heat
        and t.mismatches > 1
        and any(any(row) for row in t.heat)
        and len(t.heat) * len(t.heat[0]) > 1
    ):
        yield "    mismatches over rows and the last axis:"
        top = max(max(row) for row in t.heat)
        for row in t.heat:
            shades = (_SHADES[-(-9 * n // top)] for n in row)
            yield "    |" + "".join(shades) + "|"


def _element(e: Element, of: TensorDiff) -> str:
    apart = f"{e.ulp:.6g} apart" if of.integer else f"{e.ulp:.6g} ulp"
    return f"{e.index}: want {e.want} ({e.want_bits}), got {e.got} ({e.got_bits}), {apart}"


def _max_ulp(t: TensorDiff, digits: int) -> str:
    return "" if t.integer else f"{t.max_ulp:.{digits}g}"


def markdown(diff: FileDiff) -> str:
    """A table for a pull request, and the lines of what differs."""
    rows = [
        "| tensor | type | verdict | differ | max abs | max ulp | why |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    rows += [
        f"| `{t.name}` | {t.dtype}{t.shape} | {t.verdict} | {t.mismatches} | {t.max_abs:.4g} "
        f"| {_max_ulp(t, 4)} | {'; '.join(t.why) or t.reason} |"
        for t in diff.tensors
        if t.verdict != "equal"
    ]
    return "\n".join([*rows, "", *(f"    {line}" for line in lines(diff))]) + "\n"


def github(diff: FileDiff) -> Iterator[str]:
    """GitHub workflow commands, one for each tensor that is not equal."""
    for t in diff.tensors:
        if t.verdict in ("different", "incomparable"):
            first = f"first {_element(t.first, t)}" if t.first else t.reason
            text = f"{t.name}: {'; '.join(t.why) or t.verdict}; {first}"
            yield f"::error file={diff.got}::" + text.replace("%", "%25").replace("\n", "%0A")


def png(heat: list[list[int]], scale: int = 8) -> bytes:
    """A heat map as PNG: white is no mismatch, dark red the most."""
    top = max((max(row) for row in heat), default=0)
    raw = bytearray()
    for row in heat:
        pixels = b"".join(_colour(n, top) * scale for n in row)
        raw += (b"\0" + pixels) * scale
    width, height = len(heat[0]) * scale, len(heat) * scale
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(raw), 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _colour(count: int, top: int) -> bytes:
    if count == 0:
        return b"\xf8\xf8\xf8"
    depth = count / top
    return bytes((int(250 - 120 * depth), int(200 - 190 * depth), int(170 - 160 * depth)))


def page(diff: FileDiff) -> str:
    """One self-contained HTML page: verdicts, heat maps, ULP histograms, and the JSON."""
    parts = [_HEAD, f"<h1>kdtr diff</h1><p><code>{html.escape(diff.want)}</code> against "]
    parts.append(f"<code>{html.escape(diff.got)}</code></p>")
    parts.append("<table><tr><th>tensor<th>type<th>verdict<th>differ<th>max abs<th>max ulp</tr>")
    parts += [
        f"<tr class={t.verdict}><td>{html.escape(t.name)}<td>{t.dtype}{t.shape}"
        f"<td>{t.verdict}<td>{t.mismatches}<td>{t.max_abs:.5g}<td>{_max_ulp(t, 5)}</tr>"
        for t in diff.tensors
    ]
    parts.append("</table>")
    for t in diff.tensors:
        if t.verdict in ("different", "within", "incomparable"):
            parts += _section(t)
    data = json.dumps(diff.as_dict()).replace("<", "\\u003c")
    parts.append(f'<script type="application/json" id="data">{data}</script></body></html>\n')
    return "\n".join(parts)


def _section(t: TensorDiff) -> Iterator[str]:
    yield f"<h2>{html.escape(t.name)}</h2>"
    yield ("<pre>" + html.escape("\n".join(_tensor_lines(t, heat=False))) + "</pre>")
    if any(any(row) for row in t.heat):
        image = base64.b64encode(png(t.heat)).decode()
        yield "<p>mismatches over rows (down) and the last axis</p>"
        yield f'<img alt="mismatches of {html.escape(t.name)}" src="data:image/png;base64,{image}">'
    if t.ulp_histogram:
        top = max(t.ulp_histogram.values())
        unit = "differences" if t.integer else "steps of the expected grid"
        yield f"<table class=bars><caption>{unit}</caption>"
        for label, count in t.ulp_histogram.items():
            width = max(1, 300 * count // top)
            yield f'<tr><td>{html.escape(label)}<td><i style="width:{width}px"></i> {count}</tr>'
        yield "</table>"


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>kdtr diff</title>
<meta name="viewport" content="width=device-width"><style>
body{font:15px/1.45 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:left}
tr+tr{border-top:1px solid #ddd}pre{background:#f6f6f6;padding:.7em;white-space:pre-wrap}
.different td:nth-child(3),.incomparable td:nth-child(3){color:#a00;font-weight:600}
.equal td:nth-child(3),.within td:nth-child(3){color:#060}img{image-rendering:pixelated;
border:1px solid #ccc;max-width:100%}.bars i{display:inline-block;height:.8em;background:#a33}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#242424}
tr+tr{border-color:#333}}</style></head><body>"""
