"""Anyone's kernel goes through the same door: a library, a Python object or a program."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kdtr import engine as compiled
from kdtr import goldens, ops
from kdtr.errors import EngineError, KdtrError

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.engine


def certify(folder: Path, engine: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `kdtr certify` as run in `folder`."""
    return kdtr(folder, "certify", "--engine", engine, *arguments)


def kdtr(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command as run in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "kdtr", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def write_engine(folder: Path, body: str) -> None:
    head = "import numpy as np\n\n\ndef argmax(call):\n"
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (folder / "engine_under_test.py").write_text(head + lines)


@pytest.mark.parametrize("name", ["cpu", "mutants", "cuda"])
def test_a_library_shows_its_c_interface_alone(name: str) -> None:
    """Else a C++ library that is linked in mixes its symbols with another of the process."""
    where = compiled.folder()
    assert where is not None
    library = where / f"libkdtr_{name}.so"
    if name == "cuda" and not library.exists():
        pytest.skip("no CUDA engine was built")
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(library)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "kdtr_plugin_v1" in shown
    assert [symbol for symbol in shown if not symbol.startswith("kdtr_")] == []


def test_the_python_example_is_certified(argmax_cases: int) -> None:
    code, text = certify(ROOT / "examples" / "python_engine", "mine", "--ops", "argmax")
    assert code == 0, text
    assert f"{argmax_cases} PASS" in text


def test_a_certificate_of_python_names_the_bytes_of_its_module(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "python_engine"
    code, text = certify(
        folder, "mine", "--ops", "argmax", "--case", "ties", "--out", str(tmp_path)
    )
    assert code == 0, text
    (subject,) = json.loads((tmp_path / "mine/certificate.json").read_text())["subject"]
    digest = hashlib.sha256((folder / "mine.py").read_bytes()).hexdigest()
    assert subject["digest"] == {"sha256": digest}
    assert subject["name"] == "mine.py"


def test_a_partial_engine_is_certified_for_what_it_has() -> None:
    code, text = certify(
        ROOT / "examples" / "python_engine", "mine", "--ops", "argmax", "--ops", "tree_accept"
    )
    assert code == 0, text
    assert "NOT_SUPPORTED" in text
    assert "mine has no function tree_accept" in text


def test_the_c_example_is_certified(tmp_path: Path) -> None:
    library = tmp_path / "libmine.so"
    cc = os.environ.get("CC", "cc")
    source = ROOT / "examples" / "c_plugin" / "mine.c"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    include = f"-I{ROOT / 'engine' / 'include'}"
    subprocess.run([cc, *flags, include, str(source), "-o", str(library)], check=True)
    code, text = certify(tmp_path, str(library), "--ops", "tree_accept")
    assert code == 0, text
    assert "PASS" in text


def test_last_wins_argmax_is_named(tmp_path: Path) -> None:
    write_engine(
        tmp_path,
        """
x = (call.inputs["logits"].numpy().astype(np.uint32) << 16).view(np.float32)  # bf16
call.outputs["ids"].write(x.shape[-1] - 1 - np.argmax(x[..., ::-1], -1))
call.outputs["status"].write(0)
""",
    )
    code, text = certify(tmp_path, "engine_under_test", "--ops", "argmax", "--case", "ties")
    assert code == 1
    assert "FAIL  argmax@1/ties" in text
    assert "first at" in text
    assert "diagnosis: `ids`: every wrong id has the wanted id's logit: the order of ties" in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('raise ValueError("not today")', "ValueError: not today at engine_under_test.py:5"),
        ('call.inputs["logit"]', "argmax@1 has no such argument: logit"),
        ('call.outputs["ids"].write(0)', "kernel never used 'logits'"),
        ('raise ValueError("|".join([*call.inputs, *call.outputs]))', "ValueError: logits|ids|"),
        ('assert "logits" in call.inputs and "x" not in call.inputs', "never used 'ids'"),
        ("np.linalg.inv(np.zeros((2, 2)))", "Singular matrix at engine_under_test.py:5"),
        ("return", "kernel never used"),
        ('raise ValueError("\\ud800")', "ValueError: ? at engine_under_test.py:5"),
        ('call.inputs["logits"].write(0)', "View.write: argument is an input"),
        ('call.outputs["ids"].write(0.5)', "want whole numbers, for i32, got fractions"),
        ('call.outputs["ids"].write(1e20)', "View.write: values, want those of i32, got larger"),
    ],
)
def test_a_broken_python_engine_is_told_why(tmp_path: Path, body: str, said: str) -> None:
    write_engine(tmp_path, body)
    code, text = certify(tmp_path, "engine_under_test", "--ops", "argmax", "--case", "ties")
    assert code == 1, text
    assert said in text


@pytest.mark.parametrize("outputs", ["['ids', 'statuss']", "'ids, statuss'"])
def test_an_output_that_the_op_has_not_is_named(tmp_path: Path, outputs: str) -> None:
    write_engine(tmp_path, "return")
    module = tmp_path / "engine_under_test.py"
    module.write_text(module.read_text() + f"\noutputs = {{'argmax': {outputs}}}\n")
    code, text = certify(tmp_path, "engine_under_test", "--ops", "argmax", "--case", "ties")
    assert code == 1, text
    assert "the engine writes `statuss`, which is no output of the op" in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_a_folder_kdtr_where_one_works_is_not_taken_for_the_package(tmp_path: Path) -> None:
    (tmp_path / "kdtr").mkdir()
    (tmp_path / "kdtr" / "__init__.py").write_text('raise ImportError("the folder was taken")\n')
    write_engine(tmp_path, "import os\nraise KeyError(os.environ.get('PYTHONSAFEPATH', 'mine'))")
    program = "import os, sys; from kdtr.cli import main; os.chdir(sys.argv.pop(1)); main()"
    words = ["certify", "--engine", "engine_under_test", "--ops", "argmax", "--case", "ties"]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "KeyError: 'mine'" in done.stdout


def test_a_crash_of_python_is_a_result(tmp_path: Path) -> None:
    write_engine(tmp_path, "import ctypes\nctypes.string_at(8)")
    code, text = certify(tmp_path, "engine_under_test", "--ops", "argmax", "--case", "ti*")
    assert code == 1
    assert "CRASH" in text


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'\n"),
        ("kdtr:nothing", "kdtr has no"),
        ("cmd:./no_such_program", "cannot run the program"),
        ("./no_such.so", "no_such.so"),
    ],
)
def test_an_engine_that_is_not_there_is_one_line(tmp_path: Path, engine: str, said: str) -> None:
    code, text = certify(tmp_path, engine, "--ops", "argmax")
    assert code == 2, text
    assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGPIPE"])
def test_a_judge_that_a_signal_ends_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "kdtr-conform").write_text(f"#!/bin/sh\nkill -{name[3:]} $$\n")
    (tmp_path / "kdtr-conform").chmod(0o755)
    monkeypatch.setenv("KDTR_BIN", str(tmp_path))
    if name == "SIGPIPE":  # `kdtr certify | head`
        assert compiled.conform([]) == 141
    else:
        with pytest.raises(EngineError, match="kdtr-conform: killed by SIGSEGV"):
            compiled.conform([])


def test_a_build_without_cuda_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDTR_BIN", str(tmp_path))
    with pytest.raises(EngineError, match="engine cuda: this build has none: build again"):
        ops.open_engine("cuda")


@pytest.mark.parametrize(
    ("engine", "want"),
    [
        ("mine.py", "want mine, got"),
        ("mine.so", "want ./mine.so, got"),
        ("absent.so", "want ./absent.so, got"),
        ("./mine.py", "or a module's name without .py, got a Python file"),
    ],
)
def test_a_file_taken_for_a_module_is_told_its_right_name(
    tmp_path: Path, engine: str, want: str
) -> None:
    if engine != "absent.so":
        (tmp_path / engine).write_bytes(b"")
    code, text = certify(tmp_path, engine, "--ops", "argmax")
    assert (code, want in text) == (2, True), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no GPU today')", "ValueError: no GPU today at engine_under_test.py:1"),
        ("x = 1\n(", "got SyntaxError: '(' was never closed at engine_under_test.py:2\n"),
        ("device = 'cuda:first'", "device, want cpu or cuda, got cuda:first"),
    ],
)
def test_an_engine_that_cannot_be_loaded_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "engine_under_test.py").write_text(text)
    code, shown = certify(tmp_path, "engine_under_test", "--ops", "argmax")
    assert code == 2, shown
    assert said in shown
    assert "Traceback" not in shown


PROGRAM = """
import sys
import time
import numpy as np
from kdtr import container
if sys.argv[1] == "--ops":
    print("argmax@1")
    raise SystemExit
call = container.open(sys.argv[1])
x = call.values("logits")
bad = np.isnan(x).any(axis=(1, 2))
ids = np.argmax(x, -1) if x.size else np.full(x.shape[:2], -1)
ids = np.where(bad[:, None], -1, ids).astype(np.int32)
container.write(sys.argv[2], {"ids": ids, "status": bad.astype(np.int32)}, {}, {})
"""


def test_a_program_is_an_engine(tmp_path: Path, argmax_cases: int) -> None:
    program = tmp_path / "prog"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    code, text = certify(tmp_path, "cmd:./prog", "--ops", "argmax")
    assert code == 0, text
    assert f"{argmax_cases} PASS" in text


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --ops ] && echo argmax@1 && exit\necho out of luck >&2\nexit 7\n'
    )
    program.chmod(0o755)
    code, text = certify(tmp_path, "cmd:./prog", "--ops", "argmax", "--case", "ties")
    assert code == 1
    assert "7: out of luck" in text


def test_a_program_that_writes_nothing_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_text("#!/bin/sh\necho argmax@1\n")
    program.chmod(0o755)
    code, text = certify(tmp_path, "cmd:./prog", "--ops", "argmax", "--case", "ties")
    assert code == 1
    said = (
        "run failed: EngineError: cmd:./prog: the program wrote no result, want a file, got none\n"
    )
    assert said in text


HANGS = """#!/bin/sh
[ "$1" = --ops ] && echo argmax@1 && exit
sleep 300 &
echo $$ $! > pids.new && mv pids.new pids
wait
"""


def alive(pid: int) -> bool:
    """Whether a process runs. One that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("stop", ["timeout", "SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["certify", "check"])
def test_a_program_that_hangs_ends_with_the_command(
    tmp_path: Path, command: str, stop: str
) -> None:
    """It and what it started, whether its time is up or the command is told to end."""
    program, pids = tmp_path / "prog", tmp_path / "pids"
    # After a time-out nothing is left even of what left the session.
    far = "setsid sleep" if (command, stop) == ("certify", "timeout") else "sleep"
    program.write_text(HANGS.replace("sleep", far))
    program.chmod(0o755)
    only = ["argmax"] if command == "check" else ["--ops", "argmax", "--case", "ties"]
    limit = ["--timeout", "4" if stop == "timeout" else "60"]
    with subprocess.Popen(
        [sys.executable, "-m", "kdtr", command, "--engine", "cmd:./prog", *only, *limit],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        until = time.monotonic() + 50
        while not pids.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert pids.exists(), process.communicate()[0]
        found = [int(pid) for pid in pids.read_text().split()]
        if stop != "timeout":
            assert all(map(alive, found))
            process.send_signal(getattr(signal, stop))
        text, _ = process.communicate(timeout=50)
    until = time.monotonic() + 10
    while any(map(alive, found)) and time.monotonic() < until:
        time.sleep(0.05)
    left = [pid for pid in found if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, text
    want = {"timeout": 1, "SIGINT": 130, "SIGTERM": 143}[stop]
    assert process.returncode == want, text


@pytest.mark.parametrize(
    ("which", "fault", "case"),
    [
        ("argmax", "nan_ignored", "nan_refused"),
        ("argmax", "negative_zero_below_zero", "signed_zeros"),
        ("argmax", "plus_inf_refused", "infinite"),
        ("kv_commit", "capacity_is_bad_input", "refused_page_16"),
        ("kv_commit", "first_layer_only", "three_layers"),
        ("kv_commit", "inactive_refused", "inactive"),
        ("kv_commit", "length_without_root", "mixed_page_16"),
        ("kv_commit", "refused_length_grows", "refused_page_16"),
        ("kv_commit", "root_not_moved", "mixed_page_16"),
        ("merge_state", "empty_side_read", "one_empty"),
        ("merge_state", "nan_lse_accepted", "refused_requests"),
        ("moe_route", "last_wins", "all_equal_one_group"),
        ("moe_route", "nan_ignored", "nan_row"),
        ("moe_route", "unsorted", "four_groups"),
        ("rmsnorm", "one_plus_weight", "random"),
        ("rope", "negative_accepted", "refused"),
        ("silu_mul", "hard", "random"),
        ("topk_logprobs", "empty_row_lse_zero", "minus_inf"),
        ("topk_logprobs", "logprob_unnormalised", "random_f32"),
        ("topk_logprobs", "minus_inf_is_candidate", "minus_inf"),
        ("topk_merge", "ids_within_shard", "unequal_shards"),
        ("topk_merge", "lse_base_2", "unequal_shards"),
        ("topk_merge", "lse_is_max", "unequal_shards"),
        ("topk_merge", "lse_of_candidates", "unequal_shards"),
        ("topk_merge", "pads_are_candidates", "k_exceeds_shards"),
        ("topk_merge", "status_ignored", "refused_shards"),
        ("topk_merge", "ties_by_highest_id", "rank_edge_ties"),
        ("topk_merge", "ties_by_shard", "shards_out_of_order"),
        ("tree_accept", "inactive_len_zero", "inactive_requests"),
        ("tree_accept", "unread_links_checked", "unread_links_are_garbage"),
        ("tree_build", "deeper_first_ties", "coarse_lattice_ranks"),
        ("tree_masks", "padded_rows_blind", "garbage_past_n_nodes"),
        ("tree_sample", "draw_counted", "hand_derived"),
        ("tree_sample", "tokens_shifted", "hand_derived"),
        ("verify_attn", "bad_request_fails_batch", "refused_requests"),
        ("verify_attn", "inactive_request_checked", "unused_garbage"),
    ],
)
def test_a_fault_against_a_convention_is_named(
    capfd: pytest.CaptureFixture[str], which: str, fault: str, case: str
) -> None:
    file = goldens.HOME / f"{which}@1" / f"{case}.kdtr"
    spec = compiled.resolve(f"mutants:{which}@1:{fault}")
    assert compiled.conform(["run", "--engine", spec, file]) == 1
    assert f"equals `{fault}`" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("fault", "case", "said"),
    [
        ("last_prefix_key_dropped", "membership_end", "misses one of: prefix key 127, prefix key"),
        ("sibling_leak", "membership_end_bf16", "must not, one of: tree row 3 (a sibling)"),
        ("one_past_prefix", "membership_end", "head 0: column 0 holds no count"),
    ],
)
def test_the_membership_read_out_names_the_key(
    capfd: pytest.CaptureFixture[str], fault: str, case: str, said: str
) -> None:
    file = goldens.HOME / "verify_attn@1" / f"{case}.kdtr"
    spec = compiled.resolve(f"mutants:verify_attn@1:{fault}")
    assert compiled.conform(["run", "--engine", spec, file]) == 1
    assert said in capfd.readouterr().out


def test_what_follows_from_another_output_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """Log-probs are judged by the ids beside them; wrong ids make right log-probs mismatches."""
    file = goldens.HOME / "topk_merge@1" / "dominant_shard.kdtr"
    spec = compiled.resolve("mutants:topk_merge@1:ids_within_shard")
    assert compiled.conform(["run", "--engine", spec, file]) == 1
    text = capfd.readouterr().out
    assert "`logprobs` is as stored, but not what the outputs beside it give" in text
    assert "sign of zero" not in text


def test_a_repeated_case_is_refused(tmp_path: Path) -> None:
    code, text = certify(tmp_path, "cpu", "--ops", "argmax", "--case", "ties", "--case", "one*")
    assert code == 2
    assert "--case: patterns, want one, got 2" in text


def test_kernels_run_on_arrays_without_copies() -> None:
    cpu = ops.Engine("cpu")
    logits = np.array([[[0.5, 2.0, 2.0], [-1.0, -3.0, -1.0]]], np.float32)
    out = {"ids": np.empty((1, 2), np.int32)}
    got = cpu.call("argmax", logits=logits, out=out)
    assert got["ids"] is out["ids"]
    assert got["ids"].tolist() == [[1, 0]]
    assert got["status"].tolist() == [0]


def test_bits_of_a_type_numpy_lacks_are_passed_by_name() -> None:
    bits = np.array([[[0x3F80, 0x4000, 0xC000]]], np.uint16)  # 1, 2, -2 in bf16
    assert ops.Engine("cpu").call("argmax", logits=("bf16", bits))["ids"].tolist() == [[1]]


def test_an_empty_array_may_have_any_strides() -> None:
    logits = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.float32), shape=(1, 0, 3), strides=(4, 8, 0)
    )
    assert ops.Engine("cpu").call("argmax", logits=logits)["ids"].shape == (1, 0)


LOGITS = np.zeros((1, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"logits": np.zeros((1, 2), np.float32)}, "rank"),
        ({"logits": np.zeros((1, 2, 3), np.int32)}, "dtype"),
        ({"logits": np.zeros((1, 2, 3), np.float32), "k": 3}, "unknown arguments"),
        ({"logits": np.zeros((1, 2, 6), np.float32)[:, :, ::2]}, "C order"),
        ({"logits": [1.0, 2.0]}, "__dlpack__"),
        ({"logits": ()}, r"argmax@1/logits: argument, want an array or .* got \(\)"),
        ({"logits": ("bf16",)}, r"argmax@1/logits: argument, want an array or"),
        ({}, r"argmax@1: missing arguments, got \['logits'\]"),
        ({"logits": LOGITS, "arith": "f99"}, "argmax@1: arith, want exact, got f99"),
        ({"logits": LOGITS, "out": {"best": LOGITS}}, r"unknown outputs, .* got \['best'\]"),
        ({"logits": LOGITS, "state": {"ids": LOGITS}}, r"unknown state, .* got \['ids'\]"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: dict[str, object], said: str) -> None:
    out = {"ids": np.empty((1, 2), np.int32), "status": np.empty(1, np.int32)}
    with pytest.raises(KdtrError, match=said) as caught:
        ops.Engine("cpu").call("argmax", **{"out": out, **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_attributes_are_missed_too() -> None:
    with pytest.raises(EngineError, match=r"missing arguments, got \['K'\]"):
        ops.Engine("cpu").call("topk_logprobs", logits=LOGITS)


def test_an_empty_array_has_any_strides() -> None:
    empty = np.zeros((1, 2, 6), np.float32)[:, :, :0]  # torch's too: 1 where C order has 0
    assert empty.strides == (48, 24, 4)
    assert ops.Engine("cpu").call("argmax", logits=empty)["ids"].tolist() == [[-1, -1]]


def test_read_only_outputs_are_refused() -> None:
    frozen = np.empty((1, 1), np.int32)
    frozen.flags.writeable = False
    with pytest.raises(EngineError, match="read-only"):
        ops.Engine("cpu").call(
            "argmax", logits=np.zeros((1, 1, 2), np.float32), out={"ids": frozen}
        )


def test_tree_build_from_python_matches_a_tree_by_hand() -> None:
    lp = np.log(np.array([[[0.5, 0.25], [0.5, 0.25]]], np.float64)).astype(np.float32)
    got = ops.Engine("cpu").call(
        "tree_build",
        logprobs=lp,
        ids=np.array([[[7, 8], [9, 10]]], np.int32),
        root_token=np.array([1], np.int32),
        prefix_len=np.array([100], np.int32),
        budget=3,
        tie_order="ranks",
    )
    # 0.5 first; then 0.5*0.5 and 0.25 tie: the tuple (0, 0) comes before (1,).
    assert got["tokens"].tolist() == [[1, 7, 9, 8]]
    assert got["positions"].tolist() == [[100, 101, 102, 101]]


def test_a_prepared_call_sees_new_contents_of_its_arrays() -> None:
    logits = np.array([[[0.5, 2.0, 2.0]]], np.float32)
    prepared = ops.Engine("cpu").prepare("argmax", logits=logits)
    prepared.run()
    assert prepared.out["ids"].tolist() == [[1]]
    logits[0, 0, 2] = 9
    prepared.run()
    assert prepared.out["ids"].tolist() == [[2]]


def test_both_front_doors_judge_the_vectors_alike() -> None:
    """conformance/vectors/compare.tsv through Python; ctest has them through kdtr-conform."""
    core = ops._extension()
    vectors = (ROOT / "conformance/vectors/compare.tsv").read_text(encoding="utf-8")
    judged = 0
    for number, line in enumerate(vectors.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        dtype, *values, verdict = line.split()[:6]
        got, want, gate, hard = (_value(dtype, text) for text in values)
        assert core.judge_element(got, want, gate, hard) == verdict, f"line {number}"
        judged += 1
    assert judged >= 50


def _value(dtype: str, text: str) -> float:
    """Decimal, C hexadecimal, inf, nan, or `#` and bits."""
    if text.startswith("#"):
        bits = int(text[1:], 16)
        if dtype == "bf16":
            return float(np.array([bits << 16], np.uint32).view(np.float32)[0])
        kind = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype]
        size = np.dtype(kind).itemsize
        return float(np.frombuffer(bits.to_bytes(size, "little"), kind)[0])
    return float.fromhex(text) if "0x" in text else float(text)


def test_support_counts_and_gives_reasons(tmp_path: Path, argmax_cases: int) -> None:
    write_engine(tmp_path, "return")
    body = (tmp_path / "engine_under_test.py").read_text()
    refuse = "def unsupported(call):\n    return 'only one request' if call.inputs['logits']"
    refuse += ".shape[0] != 1 else ''\n"
    (tmp_path / "engine_under_test.py").write_text(f"{body}\n\n{refuse}")
    code, text = kdtr(
        tmp_path, "support", "--engine", "engine_under_test", "--ops", "argmax", "--ops", "rope"
    )
    assert code == 0, text
    some = rf"argmax@1 +(\d+) of {argmax_cases} cases\n +(\d+) NOT_SUPPORTED: only one request"
    of = re.search(some, text)
    assert of, text
    assert int(of[1]) + int(of[2]) == argmax_cases
    assert "NOT_SUPPORTED: engine_under_test has no function rope" in text
    code, text = kdtr(tmp_path, "support", "--engine", "engine_under_test", "--ops", "rope")
    assert code == 2, text


def test_certify_passes_its_options_on(tmp_path: Path) -> None:
    write_engine(
        tmp_path,
        """
import itertools, time
global count
count = next(globals().setdefault("counter", itertools.count()))
call.inputs["logits"]
call.outputs["ids"].write(count // 2)
call.outputs["status"].write(0)
""",
    )
    files = ["--json", "r.jsonl", "--junit", "r.xml", "--save", "kept", "--out", "paper"]
    only = ["--ops", "argmax", "--case", "ties"]
    code, text = certify(tmp_path, "engine_under_test", *only, "--repeat", "3", *files)
    assert code == 1
    assert "bits differ from run to run" in text
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in records] == ["engine", "case", "summary"]
    source = (tmp_path / "engine_under_test.py").read_bytes()
    assert records[0]["sha256"] == hashlib.sha256(source).hexdigest()
    assert 'failures="1"' in (tmp_path / "r.xml").read_text()
    assert (tmp_path / "kept/argmax@1.ties.actual.kdtr").exists()
    paper = tmp_path / "paper/engine_under_test/certificate.json"
    assert json.loads(paper.read_text())["predicate"]["result"] == "FAILED"

    code, text = certify(tmp_path, "engine_under_test", *only, "--invariant", "--alone", "--graph")
    assert code == 1
    assert "alone" in text
    (tmp_path / "known").write_text("xfail argmax@1/ties engine_under_test on purpose\n")
    code, text = certify(tmp_path, "engine_under_test", *only, "--expect", "known")
    assert (code, "1 XFAIL" in text) == (0, True), text

    write_engine(tmp_path, "import time\ntime.sleep(60)")
    code, text = certify(tmp_path, "engine_under_test", *only, "--timeout", "1.5")
    assert code == 1
    assert "no answer within 1.5 s" in text
    code, text = certify(tmp_path, "engine_under_test", *only, "--no-isolate")
    assert code == 2
    assert "--no-isolate" in text


def test_results_of_two_engines_are_two_files(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples/python_engine/mine.py", tmp_path)
    only = ["--ops", "argmax", "--case", "ties"]
    code, text = certify(tmp_path, "cpu", "--engine", "mine", *only, "--json", "r.jsonl")
    assert code == 0, text
    assert sorted(p.name for p in tmp_path.glob("*.jsonl")) == ["r.cpu.jsonl", "r.mine.jsonl"]


def test_score_ends_with_the_count(tmp_path: Path) -> None:
    code, text = kdtr(tmp_path, "score", "silu_mul", "--json", "m.json", "--md", "m.md")
    assert code == 0, text
    matrix = json.loads((tmp_path / "m.json").read_text())
    mutants = matrix["ops"][0]["mutants"]
    assert mutants[0]["mutant"] == "correct"
    assert text.endswith(f" {len(mutants) - 1} killed, 0 survived\n")
    assert f"{len(mutants) - 1} killed, 0 survived" in (tmp_path / "m.md").read_text()


@pytest.mark.parametrize(
    ("order", "code", "said"),
    [
        ("published", 0, "1 PASS"),
        ("counter", 1, "diagnosis: equals `insertion_order_ties`"),
    ],
)
def test_the_search_of_the_paper_is_told_from_one_with_a_counter(
    order: str, code: int, said: str
) -> None:
    only = ("--ops", "tree_build", "--case", "ties_every_level_ranks")
    got, text = certify(ROOT / "thirdparty", f"ddtree:{order}", *only)
    assert (got, said in text) == (code, True), text


def test_a_fault_in_unsupported_hides_no_case(tmp_path: Path) -> None:
    write_engine(tmp_path, "pass")
    with (tmp_path / "engine_under_test.py").open("a") as file:
        file.write("\n\ndef unsupported(call):\n    raise ValueError('sorry')\n")
    code, text = certify(tmp_path, "engine_under_test", "--ops", "argmax", "--case", "ties")
    assert code == 1, text
    assert "unsupported() raised ValueError: sorry" in text
