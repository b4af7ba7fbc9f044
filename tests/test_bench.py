"""`kdtr bench`: memory by hand, sweeps against records, servers against a local stub."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kdtr import bench as bench_module
from kdtr import cli_page, kv_memory, svg, sweep
from kdtr import engine as engines
from kdtr.cli import cli
from kdtr.errors import KdtrError

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "goldens" / "model" / "tiny_deepseek_v3"
GIB = 1 << 30


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["bench", *(str(a) for a in arguments)], catch_exceptions=False)


# --- memory --------------------------------------------------------------------------------------

DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
DEEPSEEK_OWN = {"n_layers": 61, "n_heads": 128, "dim": 7168} | {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}


@pytest.mark.parametrize(
    ("config", "dtype", "row", "token"),
    [
        (DEEPSEEK_V3, "bf16", 1152, 70_272),  # (512 + 64) * 2; * 61
        (DEEPSEEK_V3, "f32", 2304, 140_544),
        (DEEPSEEK_V3, "fp8", 576, 35_136),
        (DEEPSEEK_OWN, "bf16", 1152, 70_272),
        ({"text_config": DEEPSEEK_V3, "hidden_size": 5}, "bf16", 1152, 70_272),
        (LLAMA_3_8B, "bf16", 4096, 131_072),  # 2 * 8 heads * 128 * 2; * 32
        (LLAMA_3_8B | {"head_dim": 64}, "bf16", 2048, 65_536),
        ({"n_layers": 2, "n_heads": 4, "dim": 32}, "bf16", 128, 256),  # no groups: 2 * 4 * 8 * 2
    ],
)
def test_bytes_of_a_token(config: dict[str, Any], dtype: str, row: int, token: int) -> None:
    cache = kv_memory.cache_of(config, dtype)
    assert (cache.row_bytes, cache.token_bytes) == (row, token)


def test_a_draft_layer_keeps_rows_too() -> None:
    assert kv_memory.cache_of(DEEPSEEK_V3, draft_layers=1).token_bytes == 1152 * 62


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "missing key num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers, want an integer of at least 1, got 0"),
        ({"num_hidden_layers": True}, "at least 1, got True"),
        ({"hidden_size": 4100}, "a multiple of 32 heads, got 4100"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "got sliding_attention"),
        ({"sliding_window": 4096}, "sliding_window, want none, got 4096"),
        ({"kv_lora_rank": 512}, "missing key qk_rope_head_dim"),
        ({"index_head_dim": 128}, "no indexer cache, got 128"),
    ],
)
def test_a_cache_that_cannot_be_counted_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KdtrError, match=message):
        kv_memory.cache_of(LLAMA_3_8B | change)


def test_a_sliding_window_that_is_off_is_none() -> None:
    config = LLAMA_3_8B | {"sliding_window": 4096, "use_sliding_window": False}
    assert kv_memory.cache_of(config).token_bytes == 131_072


def test_what_fits_by_hand() -> None:
    cache = kv_memory.Cache("MLA", layers=2, row=5, dtype="bf16")  # 20 bytes a token
    fit = kv_memory.fit(cache, 10_000, 1_000, context=17, tree_budget=3, page_size=16)
    assert fit.cache_bytes == 9_000
    assert fit.tokens == 448  # 28 whole pages of 320 bytes
    assert fit.tree_rows == 4
    assert fit.request_bytes == 720  # 2 pages, and 4 rows of 20
    assert fit.requests == 12
    assert kv_memory.fit(cache, 10_000, 1_000, 16, page_size=16).request_bytes == 320
    assert kv_memory.fit(cache, 100, 1_000, 16).requests == 0


def test_memory_prints_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V3))
    shown = bench("memory", "--config", path, "--weights-gib", "100", "--context", "4096")
    assert shown.exit_code == 0
    lines = {tuple(line.split()) for line in shown.stdout.splitlines()}
    assert ("a", "token", "70,272", "bytes") in lines
    assert ("left", "for", "the", "cache", "41.00", "GiB") in lines
    found = json.loads(bench("memory", "--config", path, "--weights-gib", "100", "--json").stdout)
    # 41 GiB = 44,023,414,784 bytes: 9,788 pages of 64 * 70,272; a request is 2,560 pages of the
    # longest context and 65 rows of 70,272: 11,517,981,... so three fit.
    assert found["tokens"] == 9_788 * 64
    assert found["request_bytes"] == (163_840 + 65) * 70_272
    assert found["requests"] == 3


def test_memory_plots_what_fits_against_the_context(tmp_path: Path) -> None:
    path, chart = tmp_path / "config.json", tmp_path / "memory.svg"
    path.write_text(json.dumps(DEEPSEEK_V3))
    options = ["--weights-gib", "100", "--context", "4096", "--plot", str(chart)]
    assert bench("memory", "--config", path, *options).exit_code == 0
    circles = ET.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}circle")  # noqa: S314
    assert len(circles) == 2 * 8  # of 32 to 4,096 tokens
    # (4,096 + 65) 70,272 bytes are 0.2723 GiB, of an axis of 0.3 over 130 points above 204.
    assert circles[7].get("cy") == "86.0"
    assert kv_memory.lengths(3) == [1, 3]


def test_memory_takes_the_weights_beside_and_says_when_nothing_fits(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_OWN))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    none = bench("memory", "--config", path, "--json", "--context", "1", "--card-gib", "0.001")
    assert none.exit_code == 1
    assert json.loads(none.stdout)["weight_bytes"] == 1000
    silent = bench("memory", "--config", path)
    assert silent.exit_code == 2
    assert silent.stderr.endswith("missing key max_position_embeddings (--context N)\n")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "\udcff"])
def test_a_configuration_that_is_no_object_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    done = bench("memory", "--config", path)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["kernels", "decode"])
def test_without_a_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(engines, "has_gpu", lambda: False)
    done = bench(command)
    assert done.exit_code == 2
    assert done.stderr == f"error: bench {command}: need an NVIDIA GPU, and there is none here\n"


@pytest.mark.parametrize(
    ("given", "script", "passed"),
    [
        (
            ["kernels", "attn", "topk", "--out", "OUT", "--no-peers", "--only", "x", "--repeat=3"],
            "bench.py",
            "attn topk --repeat 3 --only x --out OUT --no-peers",
        ),
        (["decode", "--layers", "3", "--out", "OUT", "--help"], "decode.py", ""),
    ],
)
def test_options_are_passed_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    script: str,
    passed: str,
) -> None:
    program = "import os, sys; text = os.environ['PYTHONPATH'] + ' ' + ' '.join(sys.argv[1:]); "
    program += "open(sys.argv[-2], 'w').write(text); sys.exit(1)"
    (tmp_path / "bench.py").touch()
    (tmp_path / script).write_text(program)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(bench_module, "_BENCHMARKS", tmp_path)
    monkeypatch.setattr(engines, "has_gpu", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("PYTHONPATH", "/other")
    out = tmp_path / "out.json"
    done = bench(*(str(out) if word == "OUT" else word for word in given))
    assert done.exit_code == 1  # the program's own
    words = (passed or " ".join(given[1:])).replace("OUT", str(out))
    want = f"{tmp_path.parent}:/other {words}"
    assert out.read_text() == want


def test_the_help_of_kernels_has_every_option_and_group_of_the_script() -> None:
    folder = Path(bench_module.__file__).resolve().parent.parent / "benchmarks"
    script = (folder / "bench.py").read_text(encoding="utf-8")
    options = re.findall(r'add_argument\("(--[a-z-]+)"', script)
    assert len(options) == 4
    text = " ".join(bench("kernels", "--help").stdout.split())
    assert [o for o in options if f" {o} " not in text] == []
    assert ", ".join(json.loads((folder / "shapes.json").read_text())) + "." in text


def test_the_page_of_commands_has_those_of_the_group() -> None:
    page = cli_page.page()
    assert "\n## bench\n" in page
    assert "\n## bench memory\n" in page
    assert "--card-gib" in page


# --- a sweep's rows ------------------------------------------------------------------------------


def test_a_row_by_hand() -> None:
    row = sweep.row_of(64, 0.5, [0.01, 0.02, 0.09], 0.125, 6)
    assert (row.step_s, row.accepted) == (0.02, 1.0)
    assert row.model_tps == 100.0  # 2 tokens in 0.02 s
    assert row.measured_tps == 48.0
    assert (row.steps, row.tokens) == (3, 6)


def test_ratios_split_a_slowdown() -> None:
    rows = [sweep.row_of(1, 0, [0.5], 0.5, 3), sweep.row_of(2, 0, [1.0], 1.0, 2)]
    sweep.compare(rows)
    assert (rows[1].step_ratio, rows[1].yield_ratio) == (2.0, 2 / 3)
    assert rows[0].step_ratio == 1.0


def test_a_stream_without_usage_has_times_and_no_acceptance() -> None:
    row = sweep.stream_row(7, 10.0, [10.5, 10.75, 11.25], {})
    assert (row.context, row.first_s, row.step_s) == (7, 0.5, 0.375)
    assert math.isnan(row.accepted)
    assert math.isnan(row.measured_tps)
    sweep.compare([row])
    assert sweep.table([row])[1] == ["7", "500.00", "375.000", "", "", "", "", "1.00", ""]


def test_the_first_chunk_counts_as_one_token() -> None:
    row = sweep.stream_row(7, 0.0, [1.0, 1.5, 2.0], {"prompt_tokens": 70, "completion_tokens": 6})
    assert row.context == 70
    assert row.accepted == 1.5  # 5 tokens in 2 chunks
    assert row.measured_tps == 5.0


def test_one_chunk_says_nothing_of_steps() -> None:
    assert math.isnan(sweep.stream_row(7, 0.0, [1.0], {"completion_tokens": 6}).step_s)


# --- an engine -----------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_sweep_accepts_what_the_record_does() -> None:
    trace = json.loads((MODEL / "ddtree_trace.json").read_bytes())["64"][3]
    prompts = json.loads((MODEL / "greedy_tokens.json").read_bytes())["prompts"]
    ids = prompts[3]["prompt_ids"]
    (row,) = sweep.engine_rows(MODEL, "cpu", [len(ids)], 64, 6, ids)
    want = [one["accepted_length"] for one in trace["rounds"][:8]]
    assert row.rounds == want
    assert row.accepted == sum(want[2:]) / 6
    assert row.tokens == sum(want[2:]) + 6
    assert row.greedy_s > 0
    assert row.model_tps == (1 + row.accepted) / row.step_s


@pytest.mark.engine
def test_context_prints_a_table_and_writes_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    options = ["--contexts", "32,8", "--steps", "2", "--plot", str(plot)]
    done = bench("context", "--model", MODEL, *options)
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == ["context", "8", "32"]
    assert lines[1][3] == "0.00"  # no drafts
    root = ET.parse(plot).getroot()  # noqa: S314 (our own)
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 4
    found = json.loads(bench("context", "--model", MODEL, *options[:4], "--json").stdout)
    assert [row["context"] for row in found["rows"]] == [8, 32]
    assert found["rows"][0]["greedy_s"] is None


@pytest.mark.engine
def test_damaged_draft_heads_are_the_decoders_to_refuse(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, tmp_path)
    for data in (b"", b"\xff" * 64, b"\x02" + bytes(7) + b"[]", b"\x01" + bytes(7) + b"3"):
        (tmp_path / "draft_heads.safetensors").write_bytes(data)
        done = bench("context", "--model", tmp_path, "--tree-budget", "4", "--contexts", "8")
        assert done.exit_code == 2
        assert "draft_heads.safetensors" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --model or --url"),
        (["--model", str(MODEL), "--url", "http://x/v1"], "give --model or --url"),
        (["--model", str(MODEL), "--contexts", "8,x"], "want lengths of at least 1"),
        (["--model", str(MODEL), "--contexts", "0"], "want lengths of at least 1"),
        (["--url", "http://x/v1", "--chat", "--prompt-ids", "1"], "leave out --prompt-ids"),
        (["--url", "http://x/v1", "--extra", "[]"], "want a JSON object"),
        (["--url", "x/v1", "--contexts", "8"], "--url: address, want http://HOST:PORT/v1"),
    ],
)
def test_context_says_what_is_wrong(arguments: list[str], message: str) -> None:
    done = bench("context", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


# --- a server ------------------------------------------------------------------------------------

Answer = Callable[["Stub", dict[str, Any]], None]


class Stub(BaseHTTPRequestHandler):
    """A server whose streams `answer` writes; it keeps what it was asked."""

    protocol_version = "HTTP/1.1"
    answer: Answer
    asked: list[tuple[str, dict[str, Any], str]]

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._whole(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body, self.headers.get("Authorization", "")))
        type(self).answer(self, body)

    def _whole(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, value: Any) -> None:
        self.write(f"data: {json.dumps(value)}\n\n".encode())


def steps(stub: Stub, body: dict[str, Any]) -> None:
    """One token, then four chunks of three each, 20 ms apart; usage at the end."""
    stub.begin()
    for i in range(5):
        time.sleep(0.02)
        text = "a" if i == 0 else "bcd"
        stub.event({"choices": [{"text": text, "delta": {"content": text}}], "usage": None})
        stub.write(b": still here\n\n")
    usage = {"prompt_tokens": 2 * len(body.get("prompt", "").split()), "completion_tokens": 13}
    stub.event({"choices": [], "usage": usage})
    stub.write(b"data: [DONE]\n\n")
    stub.write(b"")


class Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], tuple[str, type[Stub]]]]:
    running: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> tuple[str, type[Stub]]:
        kind = type("One", (Stub,), {"answer": staticmethod(answer), "asked": []})
        server = Quiet(("127.0.0.1", 0), kind)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/v1", kind

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


Serve = Callable[[Answer], tuple[str, type[Stub]]]


def test_a_server_is_measured_by_its_stream(serve: Serve) -> None:
    url, kind = serve(steps)
    done = bench("context", "--url", url, "--contexts", "5,10", "--json", "--extra", '{"top_k": 1}')
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["unit"] == "chunk"
    for row, words in zip(found["rows"], (5, 10), strict=True):
        assert row["context"] == 2 * words  # the server's count, not ours
        assert (row["steps"], row["tokens"], row["accepted"]) == (4, 12, 2.0)
        assert row["first_s"] >= 0.02
        assert row["first_s"] + 12 / row["measured_tps"] >= 0.1  # five sleeps up to the last
    path, body, key = kind.asked[1]  # the first one only warms up
    assert (path, body["model"], body["stream"], body["top_k"]) == (
        "/v1/completions", "tiny", True, 1
    )  # fmt: skip
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["prompt"].split()) == 5
    assert key == ""
    assert kind.asked[0][1]["max_tokens"] == 2
    prompts = [one[1]["prompt"] for one in kind.asked]
    assert not prompts[1].startswith(prompts[0])  # a prefix cache must not know it


def test_chat_and_a_key(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "abc")
    url, kind = serve(steps)
    options = ["--chat", "--contexts", "3", "--served-model", "m", "--key-env", "BENCH_KEY"]
    done = bench("context", "--url", url + "/", *options)
    assert done.exit_code == 0
    assert " 2.00 " in done.stdout.splitlines()[1]
    path, body, key = kind.asked[1]
    assert (path, body["model"], key) == ("/v1/chat/completions", "m", "Bearer abc")
    assert [m["role"] for m in body["messages"]] == ["user"]


def test_ids_are_sent_as_numbers(serve: Serve) -> None:
    def plain(stub: Stub, body: dict[str, Any]) -> None:
        steps(stub, {"prompt": ""})

    url, kind = serve(plain)
    assert bench("context", "--url", url, "--contexts", "5", "--prompt-ids", "7 8").exit_code == 0
    assert kind.asked[1][1]["prompt"] == [7, 8, 7, 8, 7]


def refuse(stub: Stub, body: dict[str, Any]) -> None:
    stub._whole(400, b'{"message": "no\x1b[31m such model"}')


def stall(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    for _ in range(3000):  # each byte comes in time; the end does not
        stub.write(b":")
        time.sleep(0.01)


def silent(stub: Stub, body: dict[str, Any]) -> None:
    time.sleep(30)


def cut_short(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    stub.event({"choices": [{"text": "a"}]})
    stub.write(b"")


def wordless(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    stub.event({"choices": [{"text": ""}]})
    stub.event({"choices": [None]})
    stub.write(b"data: [DONE]\n\n")


def failing(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    stub.event({"error": {"message": "out of memory"}})


def garbled(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    stub.write(b"data: <html>\xff\n\n")


def dropped(stub: Stub, body: dict[str, Any]) -> None:
    stub.begin()
    stub.wfile.write(b"ff\r\ndata")
    stub.close_connection = True


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse, 'status, want 200, got 400 \'{"message": "no\\x1b[31m such model"}\''),
        (stall, "answer, want its end within 0.3 s"),
        (silent, "answer, want its end within 0.3 s"),
        (cut_short, "stream, want data: [DONE] at its end, got none"),
        (wordless, "stream, want events with text, got none"),
        (failing, "error {'message': 'out of memory'}"),
        (garbled, "answer, want a JSON object, got '<html>\\ufffd'"),
        (dropped, "/completions: "),
    ],
)
def test_a_bad_server_is_one_line(serve: Serve, answer: Answer, message: str) -> None:
    url, _ = serve(answer)
    start = time.monotonic()
    limit = "0.3" if answer in (stall, silent) else "20"
    done = bench("context", "--url", url, "--contexts", "4", "--timeout", limit)
    assert time.monotonic() - start < 20
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_endless_answer_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(stub: Stub, body: dict[str, Any]) -> None:
        stub.begin()
        for _ in range(100):
            stub.write(b":" * 1000 + b"\n")

    monkeypatch.setattr(sweep, "RESPONSE_LIMIT", 10_000)
    url, _ = serve(flood)
    done = bench("context", "--url", url, "--contexts", "4")
    assert done.exit_code == 2
    assert "answer, want at most 10000 bytes" in done.stderr


def test_a_server_that_is_not_there_is_one_line() -> None:
    done = bench("context", "--url", "http://127.0.0.1:1/v1", "--contexts", "4")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: http://127.0.0.1:1/v1/models: ")


STREAM = (
    b': hello\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:one\ndata: two\n\n\n\ndata: \xc3\xa9\n\nleft'
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_wherever_the_bytes_are_cut(size: int) -> None:
    events = sweep.Events()
    pieces = [STREAM[i : i + size] for i in range(0, len(STREAM), size)]
    found = [text for piece in pieces for text in events.feed(piece)]
    assert found == ['{"a": 1}', "one\ntwo", "é"]


# --- plots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "want"),
    [
        (0.0, [0, 1]),
        (float("nan"), [0, 1]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (6.1, [0, 2, 4, 6, 8]),
        (30.0, [0, 5, 10, 15, 20, 25, 30]),
    ],
)
def test_ticks_reach_the_top(top: float, want: list[float]) -> None:
    assert [round(t, 9) for t in svg.ticks(top)] == want


def test_a_chart_places_its_points() -> None:
    lines = {"<b>": [0.0, 5.0, 10.0], "gap": [10.0, math.nan, 0.0]}
    text = svg.chart("a & b", "x", [1, 2, 4], [svg.Panel("y", lines)])
    root = ET.fromstring(text)  # noqa: S314 (our own)
    one, two = (p.get("points") for p in root.findall("{http://www.w3.org/2000/svg}polyline"))
    # The panel starts at 40: level 0 at 40 + 190 - 26 = 204, the top tick 10 at 40 + 34 = 74; the
    # axis is logarithmic from 70 to 620.
    assert one == "70.0,204.0 345.0,139.0 620.0,74.0"
    assert two == "70.0,74.0 620.0,204.0"
    shown = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a & b" in shown
    assert "<b>" in shown


def test_one_point_is_a_chart_too() -> None:
    ET.fromstring(svg.chart("", "", [8], [svg.Panel("", {"": [1.0]})]))  # noqa: S314 (our own)
