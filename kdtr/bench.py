"""The commands of `kdtr bench`. Each imports what it needs, so that `kdtr --help` is quick."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kdtr.errors import KdtrError

if TYPE_CHECKING:
    from kdtr.sweep import Row

_BENCHMARKS: Final = Path(__file__).resolve().parent.parent / "benchmarks"
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
_plot = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG."
)


class Finite(click.FloatRange):
    """A range of numbers. click's own lets NaN and infinities through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return float(number)


@click.group()
def bench() -> None:
    """Measure kernels and decoding, and work out what fits in memory."""


# --- kernels -------------------------------------------------------------------------------------


def _no_kernels() -> str:
    """Why kernels cannot be timed here, or ""."""
    from kdtr import engine

    if not (_BENCHMARKS / "bench.py").exists():
        return "need the source tree: benchmarks/ is not installed"
    if not engine.has_gpu():
        return "need an NVIDIA GPU, and there is none here"
    try:
        import torch
    except ImportError:
        return "need torch: pip install -r benchmarks/requirements.txt"
    return "" if torch.cuda.is_available() else "need a torch that was built for CUDA"


@bench.command()
@click.argument("groups", nargs=-1)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the record here, as JSON.")
@click.option("--repeat", type=click.IntRange(1), default=20, show_default=True)
@click.option("--only", default="", metavar="TEXT", help="Only shapes whose JSON has this text.")
@click.option("--no-peers", is_flag=True, help="Time only kdtr's own kernels.")
def kernels(
    groups: tuple[str, ...], out: str | None, repeat: int, only: str, no_peers: bool
) -> None:
    """Time the CUDA kernels beside their peers, each call certified first.

    GROUPS are those of benchmarks/shapes.json, all by default: topk, tree, build, accept, merge,
    attn, tail, step, moe, products. Exit code 1 when a kernel was wrong, and so was not timed.
    """
    arguments = [*groups, "--repeat", str(repeat)]
    arguments += ["--only", only] if only else []
    arguments += ["--out", out] if out else []
    arguments += ["--no-peers"] if no_peers else []
    _run("kernels", "bench.py", arguments)


def _run(command: str, script: str, arguments: Sequence[str]) -> None:
    """A script of benchmarks/, whose exit code is this program's."""
    if why := _no_kernels():
        raise KdtrError(f"bench {command}", why)
    path = os.pathsep.join(filter(None, (str(_BENCHMARKS.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(_BENCHMARKS / script), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    raise SystemExit(done.returncode)


# --- the decoder ---------------------------------------------------------------------------------


@bench.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def decode(arguments: tuple[str, ...]) -> None:
    """Time the decoder on a random model, beside plain torch and the bytes it must read.

    ARGUMENTS are those of benchmarks/decode.py; `--help` lists them. Exit code 1 when tokens
    differed, and so were not timed.
    """
    _run("decode", "decode.py", arguments)


# --- memory --------------------------------------------------------------------------------------


@bench.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), required=True, help="config.json."
)
@click.option("--card-gib", type=Finite(0, 2**40), default=141.0, show_default=True)
@click.option(
    "--weights-gib",
    type=Finite(0, 2**40),
    help="Weights and everything else; by default the safetensors files beside CONFIG.",
)
@click.option("--dtype", type=click.Choice(["bf16", "f32", "fp8"]), default="bf16")
@click.option("--context", type=click.IntRange(1), help="By default the longest of CONFIG.")
@click.option(
    "--tree-budget", type=click.IntRange(0, 1024), default=64, help="0: no tree.", show_default=True
)
@click.option("--page-size", type=click.IntRange(1), default=64, show_default=True)
@click.option("--draft-layers", type=click.IntRange(0), default=0, help="Of an MTP draft model.")
@_plot
@_as_json
def memory(
    config: Path,
    card_gib: float,
    weights_gib: float | None,
    dtype: str,
    context: int | None,
    tree_budget: int,
    page_size: int,
    draft_layers: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Work out a model's cache: bytes of a token, and the tokens and requests that fit a card.

    For MLA (DeepSeek-V3, Kimi-K2) and grouped-query attention. Exit code 1 when not one request
    fits.
    """
    from kdtr import kv_memory

    cache = kv_memory.cache_of(kv_memory.read(config), dtype, draft_layers, str(config))
    tokens = context or cache.positions
    if not tokens:
        raise KdtrError(str(config), "missing key max_position_embeddings", remedy="--context N")
    weights = kv_memory.weight_bytes(config.parent)
    if weights_gib is not None:
        weights = round(weights_gib * kv_memory.GIB)
    card = round(card_gib * kv_memory.GIB)
    fit = kv_memory.fit(cache, card, weights, tokens, tree_budget, page_size)
    if plot:
        at = kv_memory.lengths(tokens)
        fits = [kv_memory.fit(cache, card, weights, n, tree_budget, page_size) for n in at]
        plot.write_text(kv_memory.plot(fits, str(config)), encoding="utf-8")
    if as_json:
        found = {
            "attention": cache.kind,
            "dtype": dtype,
            "layers": cache.layers,
            "row_elements": cache.row,
            "row_bytes": cache.row_bytes,
            "token_bytes": cache.token_bytes,
            "card_bytes": card,
            "weight_bytes": weights,
            **vars(fit),
        }
        click.echo(json.dumps(found, indent=1))
    else:
        gib = kv_memory.GIB
        source = " (the files beside it)" if weights_gib is None and weights else ""
        for name, value, unit in (
            ("attention", f"{cache.kind} {dtype}", f"{cache.layers} layers of {cache.row}"),
            ("a token, one layer", f"{cache.row_bytes:,}", "bytes"),
            ("a token", f"{cache.token_bytes:,}", "bytes"),
            ("card", f"{card / gib:.2f}", "GiB"),
            ("weights", f"{weights / gib:.2f}", f"GiB{source}"),
            ("left for the cache", f"{fit.cache_bytes / gib:.2f}", "GiB"),
            ("tokens that fit", f"{fit.tokens:,}", f"in pages of {page_size}"),
            ("a request", f"{fit.context:,}", f"tokens and {fit.tree_rows} rows of its tree"),
            ("its memory", f"{fit.request_bytes / gib:.3f}", "GiB"),
            ("requests that fit", f"{fit.requests:,}", ""),
        ):
            click.echo(f"{name:20}{value:>16} {unit}".rstrip())
    if cache.positions and tokens > cache.positions:
        longest = f"the model is made for {cache.positions:,} positions"
        click.echo(f"note: {tokens:,} tokens are asked for, {longest}", err=True)
    raise SystemExit(0 if fit.requests else 1)


# --- context -------------------------------------------------------------------------------------


def _lengths(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise click.BadParameter(f"want lengths of at least 1 with commas between, got {text}")
    return found


def _given_ids(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    words = (sys.stdin.read() if text == "-" else text).replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise click.BadParameter("want token ids") from None


def _object(_: click.Context, __: click.Parameter, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise click.BadParameter("want a JSON object")
    return value


@bench.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--engine", default="cpu", show_default=True, help="cpu, cuda or a library's path.")
@click.option("--precision", type=click.Choice(["f32", "bf16"]), default="f32", show_default=True)
@click.option("--url", default="", metavar="http://HOST:PORT/v1", help="A server instead.")
@click.option("--contexts", default="64,256,1024", show_default=True, callback=_lengths)
@click.option("--tree-budget", type=click.IntRange(0, 1024), default=0, help="0: no draft tree.")
@click.option("--steps", "-n", type=click.IntRange(2), default=16, show_default=True)
@click.option(
    "--prompt-ids",
    "ids",
    default="",
    callback=_given_ids,
    help="The text, cut or repeated to each length; - reads it. By default drawn by --seed.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--served-model", default="", help="By default the server's first.")
@click.option("--chat", is_flag=True, help="Ask /chat/completions, not /completions.")
@click.option("--max-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--timeout", type=Finite(0.1, 1e6), default=120.0, help="Seconds a request.")
@click.option("--key-env", default="", help="Environment variable with the server's token.")
@click.option("--extra", default="{}", callback=_object, help="JSON fields for each request.")
@_plot
@_as_json
def context(
    model: Path | None,
    engine: str,
    precision: str,
    url: str,
    contexts: list[int],
    tree_budget: int,
    steps: int,
    ids: list[int],
    seed: int,
    served_model: str,
    chat: bool,
    max_tokens: int,
    timeout: float,
    key_env: str,
    extra: dict[str, Any],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure step time and acceptance against context length, one request at a time.

    Tokens per second are (1 + accepted) / step time: the last two columns say how each part
    changed since the shortest context. --url measures any OpenAI-compatible streaming server; its
    step is a chunk, and acceptance is known where it reports usage and sends a chunk a step.
    """
    from kdtr import inspection, sweep

    if (model is None) == (not url):
        raise click.UsageError("give --model or --url")
    if chat and ids:
        raise click.UsageError("--chat takes text: leave out --prompt-ids")
    if model is not None:
        name, unit = f"{model.name} on {engine}, budget {tree_budget}", "step"
        found = sweep.engine_rows(model, engine, contexts, tree_budget, steps, ids, seed, precision)
    else:
        key = os.environ.get(key_env, "") if key_env else ""
        server = sweep.Server(url, served_model, chat, max_tokens, timeout, key, extra)
        name, unit = f"{served_model or 'model'} at {url}", "chunk"
        found = sweep.server_rows(server, contexts, ids, seed)
    rows = list(_watched(found, len(contexts)))
    sweep.compare(rows)
    if plot:
        plot.write_text(sweep.plot(rows, name, unit), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"what": name, "unit": unit, "rows": _plain(rows)}, indent=1))
    else:
        for line in inspection.columns(sweep.table(rows, unit)):
            click.echo(line)


def _watched(rows: Iterator[Row], total: int) -> Iterator[Row]:
    """Rows as they come, counted on a terminal's standard error."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(rows, total, "measuring", hidden=hidden, file=sys.stderr) as bar:
        yield from bar


def _plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows for JSON, where what is unknown is null."""
    return [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in vars(row).items()}
        for row in rows
    ]
