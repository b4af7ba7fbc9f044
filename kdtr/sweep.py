"""Decoding against context length: is it slow because steps are long, or because few are accepted?

Tokens per second are (1 + accepted) / step time. A sweep measures both parts at each context, over
an engine's decoder or over any OpenAI-compatible streaming server, so that the parts can be told
apart: `step_ratio` and `yield_ratio` are each row's against the shortest context.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import random
import socket
import statistics
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kdtr import container, svg
from kdtr.decode import Decoder
from kdtr.errors import KdtrError

NAN: Final = float("nan")
RESPONSE_LIMIT: Final = 64 << 20


@dataclass
class Row:
    """One context length. Times are seconds; NaN is what could not be known.

    Attributes:
        context: tokens before the first step.
        first_s: from the request to the first token.
        step_s: median time of a step (of a chunk, from a server).
        accepted: mean accepted drafts a step.
        model_tps: (1 + accepted) / step_s, tokens per second.
        measured_tps: tokens after the first over the time from the first to the last.
        greedy_s: median time of a step without drafts; NaN unless measured.
        steps: how many were measured.
        tokens: that came after the first.
        step_ratio: step_s over that of the first row.
        yield_ratio: tokens a step over those of the first row.
    """

    context: int
    first_s: float
    step_s: float
    accepted: float
    model_tps: float
    measured_tps: float
    greedy_s: float = NAN
    steps: int = 0
    tokens: int = 0
    step_ratio: float = NAN
    yield_ratio: float = NAN
    rounds: list[int] = field(default_factory=list)


def row_of(
    context: int, first_s: float, times: Sequence[float], total_s: float, tokens: int | None
) -> Row:
    """A row from the times of its steps.

    Args:
        context: tokens before the first step.
        first_s: time to the first token.
        times: of each step, seconds.
        total_s: from the first token to the last.
        tokens: that came after the first; None = unknown.
    """
    if not times:
        return Row(context, first_s, NAN, NAN, NAN, NAN)
    step = statistics.median(times)
    each, accepted = NAN, NAN
    if tokens is not None:
        each, accepted = tokens / len(times), (tokens - len(times)) / len(times)
    return Row(
        context,
        first_s,
        step,
        accepted,
        each / step if step else NAN,
        NAN if tokens is None or not total_s else tokens / total_s,
        steps=len(times),
        tokens=tokens or 0,
    )


def compare(rows: Sequence[Row]) -> None:
    """Fill each row's ratios to the first row."""
    first = rows[0]
    for row in rows:
        row.step_ratio = row.step_s / first.step_s if first.step_s else NAN
        row.yield_ratio = (1 + row.accepted) / (1 + first.accepted)


# --- an engine -----------------------------------------------------------------------------------


def _depth(folder: Path) -> int:
    """How many draft heads a checkpoint has, from the header of their file alone.

    0 for a file that is missing or damaged: the decoder says so better.
    """
    try:
        if not (folder / "draft_heads.safetensors").exists():
            with container.open(folder / "draft_heads.kdtr") as heads:
                return len(heads)
        with open(folder / "draft_heads.safetensors", "rb") as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), 1 << 24)))
    except (OSError, ValueError, RecursionError, KdtrError):
        return 0
    return sum(name.endswith(".weight") for name in header) if isinstance(header, dict) else 0


def _fill(ids: Sequence[int], context: int) -> list[int]:
    """The first `context` of the ids, repeated as often as that takes."""
    return list(itertools.islice(itertools.cycle(ids), context))


def engine_rows(
    folder: Path,
    engine: str,
    contexts: Sequence[int],
    tree_budget: int = 0,
    steps: int = 16,
    ids: Sequence[int] = (),
    seed: int = 0,
    precision: str = "f32",
) -> Iterator[Row]:
    """A row for each context of a decoder; steps after the end of text are taken all the same.

    Args:
        folder: checkpoint.
        engine: "cpu", "cuda" or the path of an engine library.
        contexts: prompt lengths, tokens.
        tree_budget: draft nodes of a step; 0 = one token a step.
        steps: that are measured, after two that are not: the second one records the step.
        ids: the text, cut or repeated to each length; empty = ids drawn evenly.
        seed: of that draw.
        precision: of the decoder, "f32" or "bf16".

    Raises:
        EngineError: the engine or the model cannot be used.
    """
    longest = 1 + _depth(folder) if tree_budget else 1
    room = max(contexts) + (steps + 2) * longest + 1
    with Decoder(
        folder,
        engine,
        max_context=room,
        max_budget=max(tree_budget, 1),
        precision=precision,
    ) as decoder:
        draw = random.Random(seed)  # noqa: S311 (a text, not a secret)
        text = list(ids) or [draw.randrange(decoder.vocab) for _ in range(max(contexts))]
        for context in contexts:
            prompt = _fill(text, context)
            greedy = NAN
            if tree_budget:
                decoder.prefill(prompt)
                decoder.greedy()
                decoder.greedy()
                greedy = statistics.median(_timed_step(decoder, 0)[0] for _ in range(steps))
            start = time.perf_counter()
            decoder.prefill(prompt)
            first = time.perf_counter() - start
            warm = [_timed_step(decoder, tree_budget)[1] for _ in range(2)]
            start = time.perf_counter()
            taken = [_timed_step(decoder, tree_budget) for _ in range(steps)]
            total = time.perf_counter() - start
            row = row_of(context, first, [t for t, _ in taken], total, sum(n for _, n in taken))
            row.greedy_s = greedy
            row.rounds = [n - 1 for n in (*warm, *(n for _, n in taken))] if tree_budget else []
            yield row


def _timed_step(decoder: Decoder, tree_budget: int) -> tuple[float, int]:
    """(seconds, new tokens) of one step; the tokens are on the host when it returns."""
    start = time.perf_counter()
    count = len(decoder.tree(tree_budget)[0]) if tree_budget else len(decoder.greedy())
    return time.perf_counter() - start, count


# --- a server ------------------------------------------------------------------------------------


class Events:
    """The data of server-sent events, from bytes cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[str]:
        """The events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in (one.removesuffix(b"\r") for one in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                text, self._data = b"\n".join(self._data), []
                yield text.decode(errors="replace")


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server and how to ask it.

    Attributes:
        url: up to and with /v1.
        model: name; "" = the first that the server lists.
        chat: chat completions instead of completions.
        tokens: most new tokens of a request.
        timeout: seconds that a whole request may take.
        key: bearer token, or "".
        extra: more fields of the request.
    """

    url: str
    model: str = ""
    chat: bool = False
    tokens: int = 64
    timeout: float = 120.0
    key: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


class _Exchange:
    """One bounded request: its connection is cut when its time is over, whatever it waits for."""

    def __init__(self, server: Server, path: str, body: Mapping[str, Any] | None = None) -> None:
        parts = urlsplit(server.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise KdtrError("--url", "address", "http://HOST:PORT/v1", server.url)
        secure = parts.scheme == "https"
        link = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._link = link(parts.netloc, timeout=server.timeout)
        self._target = f"{parts.path.rstrip('/')}/{path}"
        self._name = f"{server.url.rstrip('/')}/{path}"
        self._body = None if body is None else json.dumps(body)
        self._headers = {"Accept": "text/event-stream, application/json"}
        if body is not None:
            self._headers["Content-Type"] = "application/json"
        if server.key:
            self._headers["Authorization"] = f"Bearer {server.key}"
        self._timeout = server.timeout
        self._late = threading.Event()

    def _cut(self, link: socket.socket) -> None:
        self._late.set()
        with contextlib.suppress(OSError):  # it may have ended by itself
            link.shutdown(socket.SHUT_RDWR)

    def parts(self) -> Generator[tuple[float, bytes], None, None]:
        """(when, bytes) as they come. Raises KdtrError for whatever goes wrong."""
        watch: threading.Timer | None = None
        try:
            self._link.connect()
            watch = threading.Timer(self._timeout, self._cut, [self._link.sock])
            watch.daemon = True
            watch.start()
            method = "GET" if self._body is None else "POST"
            self._link.request(method, self._target, self._body, self._headers)
            response = self._link.getresponse()
            if response.status != http.client.OK:
                said = " ".join(response.read(300).decode(errors="replace").split())
                raise KdtrError(self._name, "status", 200, f"{response.status} {said!a}")
            size = 0
            while data := response.read1(1 << 16):
                yield time.perf_counter(), data
                size += len(data)
                if size > RESPONSE_LIMIT:
                    raise KdtrError(self._name, "answer", f"at most {RESPONSE_LIMIT} bytes")
            if self._late.is_set():
                raise KdtrError(self._name, "answer", f"its end within {self._timeout:g} s")
        except (OSError, http.client.HTTPException) as error:
            if self._late.is_set() or isinstance(error, TimeoutError):
                why = f"its end within {self._timeout:g} s"
                raise KdtrError(self._name, "answer", why) from None
            raise KdtrError(self._name, str(error) or type(error).__name__) from None
        finally:
            if watch:
                watch.cancel()
            self._link.close()


def _json(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise KdtrError(where, "answer", "a JSON object", ascii(text[:60]))
    return value


def first_model(server: Server) -> str:
    """The name of the first model that a server lists."""
    where = f"{server.url.rstrip('/')}/models"
    listed = _json(b"".join(data for _, data in _Exchange(server, "models").parts()), where)
    models = listed.get("data")
    if not (isinstance(models, list) and models and isinstance(models[0], dict)):
        raise KdtrError(where, "models", "one at least", "none")
    return str(models[0].get("id", ""))


def _has_text(event: Mapping[str, Any]) -> bool:
    """Whether an event carries generated text, a reasoning model's thoughts included."""
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    held = delta if isinstance(delta, dict) else choice
    return any(held.get(k) for k in ("text", "content", "reasoning_content", "reasoning"))


def stream_row(asked: int, start: float, texts: Sequence[float], usage: Mapping[str, Any]) -> Row:
    """A row of a stream.

    The first chunk ends the prompt's pass, so it is taken for one token. Where a server sends a
    chunk a step, the other tokens of `usage` over the other chunks are 1 + accepted.

    Args:
        asked: words of the prompt, used where the server does not say its tokens.
        start: when the request went out.
        texts: when each chunk with text came.
        usage: of the server, empty when it gave none.
    """
    context, done = usage.get("prompt_tokens"), usage.get("completion_tokens")
    times = [b - a for a, b in itertools.pairwise(texts)]
    tokens = max(done - 1, 0) if isinstance(done, int) else None
    return row_of(
        context if isinstance(context, int) and context > 0 else asked,
        texts[0] - start,
        times,
        texts[-1] - texts[0],
        tokens,
    )


_WORDS: Final = "time year people way day man thing woman life child world state week case"


def server_row(server: Server, context: int, ids: Sequence[int] = (), seed: int = 0) -> Row:
    """One streamed request of about `context` tokens.

    Args:
        server: whom to ask, with its model's name.
        context: words of the prompt, drawn by `seed`, or ids of it where `ids` are given.
        ids: the prompt, cut or repeated to the length; sent as numbers, which chat does not take.
        seed: another one is another text, which no prefix cache knows.

    Raises:
        KdtrError: no answer within the time, a status other than 200, or a stream that cannot be
            read or has no text.
    """
    path = "chat/completions" if server.chat else "completions"
    where = f"{server.url.rstrip('/')}/{path}"
    prompt: Any = _fill(ids, context)
    if not ids:
        draw = random.Random(f"{seed}/{context}")  # noqa: S311 (a text, not a secret)
        words = _WORDS.split()
        prompt = " ".join(draw.choice(words) for _ in range(context))
    body: dict[str, Any] = {
        "model": server.model,
        "max_tokens": server.tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {"messages": [{"role": "user", "content": prompt}]} if server.chat else {}
    body |= {} if server.chat else {"prompt": prompt}
    usage: dict[str, Any] = {}
    texts: list[float] = []
    start = time.perf_counter()
    with contextlib.closing(_Exchange(server, path, body | dict(server.extra)).parts()) as parts:
        for when, text in _events(parts, where):
            event = _json(text, where)
            if event.get("error"):
                raise KdtrError(where, f"error {ascii(event['error'])[:200]}")
            if _has_text(event):
                texts.append(when)
            if isinstance(event.get("usage"), dict):
                usage = event["usage"]
    if not texts:
        raise KdtrError(where, "stream", "events with text", "none")
    return stream_row(context, start, texts, usage)


def _events(parts: Iterable[tuple[float, bytes]], where: str) -> Iterator[tuple[float, str]]:
    """(when it was complete, data) of each event before [DONE], which must come."""
    events = Events()
    for when, data in parts:
        for text in events.feed(data):
            if text.strip() == "[DONE]":
                return
            yield when, text
    raise KdtrError(where, "stream", "data: [DONE] at its end", "none")


def server_rows(
    server: Server, contexts: Sequence[int], ids: Sequence[int] = (), seed: int = 0
) -> Iterator[Row]:
    """`server_row` of each context, after one that is not measured: what a server does once."""
    named = server if server.model else replace(server, model=first_model(server))
    server_row(replace(named, tokens=2), min(contexts), ids, seed - 1)
    for context in contexts:
        yield server_row(named, context, ids, seed)


# --- showing -------------------------------------------------------------------------------------


def table(rows: Sequence[Row], unit: str = "step") -> list[list[str]]:
    """Rows as text, the heading first; what is unknown is empty."""

    def number(value: float, form: str, scale: float = 1.0) -> str:
        return "" if math.isnan(value) else format(value * scale, form)

    heading = f"context|first ms|{unit} ms|accepted|tokens/s model|measured|greedy ms|{unit} x"
    return [
        [*heading.split("|"), f"tokens a {unit} x"],
        *(
            [
                str(row.context),
                number(row.first_s, ".2f", 1e3),
                number(row.step_s, ".3f", 1e3),
                number(row.accepted, ".2f"),
                number(row.model_tps, ".1f"),
                number(row.measured_tps, ".1f"),
                number(row.greedy_s, ".3f", 1e3),
                number(row.step_ratio, ".2f"),
                number(row.yield_ratio, ".2f"),
            ]
            for row in rows
        ),
    ]


def plot(rows: Sequence[Row], title: str, unit: str = "step") -> str:
    """The sweep as SVG: time of a step, tokens a step, and their quotient beside the measured."""
    steps = {unit: [1e3 * row.step_s for row in rows]}
    if any(not math.isnan(row.greedy_s) for row in rows):
        steps |= {"greedy step": [1e3 * row.greedy_s for row in rows]}
    rates = {
        "model": [row.model_tps for row in rows],
        "measured": [row.measured_tps for row in rows],
    }
    return svg.chart(
        title,
        "context, tokens",
        [row.context for row in rows],
        [
            svg.Panel(f"time of a {unit}, ms", steps),
            svg.Panel(f"tokens a {unit}", {"": [1 + row.accepted for row in rows]}),
            svg.Panel("tokens per second", rates),
        ],
    )
