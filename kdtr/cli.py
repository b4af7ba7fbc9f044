"""The command line. Each command imports what it needs, so that `kdtr --help` is quick."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdtr import __version__, bench
from kdtr.errors import EngineError, KdtrError

if TYPE_CHECKING:
    from kdtr.fixture import Tier


class _Commands(click.Group):
    """A group whose known errors are one line and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KdtrError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except MemoryError:
            click.echo("error: not enough memory", err=True)
            ctx.exit(KdtrError.exit_code)
        except RecursionError:  # JSON of somebody's
            click.echo("error: something is nested too deeply", err=True)
            ctx.exit(KdtrError.exit_code)
        except KeyboardInterrupt:  # click's own answer is 1, which means "no" here
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except BrokenPipeError:  # `kdtr list | head`
            sys.stderr.close()
            ctx.exit(0)
        except OSError as error:  # a full disk, a folder that is read-only
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"error: {place}{error.strerror or error}", err=True)
            _drop_output()
            ctx.exit(KdtrError.exit_code)


def _place(name: str, text: str) -> Callable[[Any], Any]:
    """An option that prints one of the places that `kdtr.engine` knows, and exits."""

    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        from kdtr import engine

        if wanted:
            click.echo(getattr(engine, name)())
            context.exit()

    flag = "--" + name.replace("_", "-")
    return click.option(flag, is_flag=True, expose_value=False, callback=show, help=text)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kdtr")
@_place("include_dir", "Print the folder of the C and C++ headers.")
@_place("cmake_dir", "Print the folder of kdtrConfig.cmake.")
@_place("plugin_source", "Print the C++ file with the plug-in table.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Golden fixtures and conformance for speculative-decoding kernels.

    Exit codes: 0 yes, 1 no (something differs or fails), 2 it could not be judged, 130 interrupted,
    143 terminated.
    """
    if os.environ.get("NO_COLOR"):
        context.color = False  # otherwise click asks whether the output is a terminal


cli.add_command(bench.bench)


class _File(click.Path):
    """A path to read. What is neither file nor folder is refused: its writer may never come."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from kdtr import container

        path = super().convert(value, param, ctx)
        container.want_file(os.fsdecode(path))
        return path


def _terminated(number: int, _: object) -> None:
    """SIGTERM ends a command as an interrupt does, so that nothing half done stays behind."""
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise SystemExit(128 + number)


def _drop_output() -> None:
    """Python writes what is left of the output when it ends, and would fail once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        cli(prog_name="kdtr")
    except OSError as error:  # of --help and --version, which are no commands
        click.echo(f"error: {error.strerror or error}", err=True)
        _drop_output()
        raise SystemExit(KdtrError.exit_code) from None


_tier = click.option(
    "--tier",
    type=click.Choice(["small", "full"]),
    default="small",
    show_default=True,
    help="small: the committed fixtures; full: the large ones too.",
)
_jobs = click.option("--jobs", "-j", type=click.IntRange(1), default=1, help="Processes.")


def _as_tier(text: str) -> Tier:
    return "full" if text == "full" else "small"


def _recorded(_: click.Context, __: click.Parameter, value: str | None) -> None:
    if value:
        os.environ["KDTR_RECORDED"] = value  # worker processes inherit it


@cli.command()
@click.argument("ops", nargs=-1)
@click.option("--check", is_flag=True, help="Make nothing; compare with LOCK and the files.")
@_tier
@_jobs
@click.option(
    "--recorded",
    type=click.Path(exists=True, file_okay=False),
    callback=_recorded,
    expose_value=False,
    help="Folder of inputs recorded from real models.",
)
@click.option(
    "--out",
    metavar="FOLDER|URL",
    help="Write both tiers here, whatever LOCK says, and touch nothing else. A URL is any that "
    "fsspec takes; what is there with LOCK's root is kept.",
)
@click.option("--scheduler", default="", metavar="ADDRESS", help="Make them on a Dask cluster.")
@click.option("--amend", is_flag=True, help="Accept a changed contract that no release holds yet.")
def generate(
    ops: tuple[str, ...],
    check: bool,
    tier: str,
    jobs: int,
    out: str | None,
    scheduler: str,
    amend: bool,
) -> None:
    """Make the golden fixtures of OPS (all by default), or check that they are reproduced.

    An interrupted run leaves goldens and LOCK as they were.
    """
    from kdtr import goldens

    if check and (out or amend):
        raise click.UsageError("--check makes nothing: leave out --out and --amend")
    if out and "://" in out:
        from kdtr import publish

        with _progress("generating") as progress:
            done = publish.publish(out, ops, _as_tier(tier), scheduler=scheduler, progress=progress)
        made = len(done.cases) - len(done.kept)
        click.echo(f"{made} fixtures made in {out}, {len(done.kept)} were there")
        return
    with _progress("checking" if check else "generating") as progress:
        summary = goldens.generate(
            ops,
            _as_tier(tier),
            check=check,
            amend=amend,
            jobs=jobs,
            out=Path(out) if out else None,
            scheduler=scheduler,
            progress=progress,
        )
    for name in summary.changed:
        click.echo(f"{'new' if name in summary.new else 'changed'} {name}")
    for path in summary.removed:
        click.echo(f"removed {path}")
    verb = (
        "equal to LOCK"
        if check
        else f"made in {out}"
        if out
        else f"made, {len(summary.new)} new, {len(summary.changed) - len(summary.new)} changed"
    )
    click.echo(f"{len(summary.made)} fixtures {verb}")


class _progress:  # noqa: N801 (used as a function)
    """A progress bar on standard error; silent where that is not a terminal.

    Where files go to a place that nobody named, a line says so in any case.
    """

    def __init__(self, label: str, place: str = "") -> None:
        self._label, self._place = label, place
        self._bar: Any = None

    def __enter__(self) -> Callable[[int, int, str], None]:
        return self._step

    def _step(self, _: int, total: int, name: str) -> None:
        if self._bar is None:
            if self._place:
                many = "fixture" if total == 1 else "fixtures"
                click.echo(f"making {total} {many} in {self._place}", err=True)
            self._bar = click.progressbar(
                length=total,
                label=self._label,
                file=sys.stderr,
                item_show_func=lambda item: item,
                hidden=not sys.stderr.isatty(),
            )
            self._bar.__enter__()
        self._bar.update(1, name)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*exc)


@cli.command(name="list")
@click.argument("ops", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(ops: tuple[str, ...], as_json: bool) -> None:
    """List OPS (all by default) and their cases, with the mistake that each case catches."""
    import json

    from kdtr import contract, goldens

    pairs = [(contract.load(op), case) for op, case in goldens.select(ops, "full")]
    if as_json:
        click.echo(
            json.dumps(
                [
                    {
                        "op": rules.id,
                        "case": case.name,
                        "tier": case.tier,
                        "kind": case.kind,
                        "arith": case.profile,
                        "family": case.family,
                        "catches": case.catches,
                        "kills": case.kills,
                        "flags": case.flags,
                    }
                    for rules, case in pairs
                ],
                indent=1,
            )
        )
        return
    shown = None
    for rules, case in pairs:
        if rules.id != shown:
            click.echo(f"{'' if shown is None else chr(10)}{rules.id}  {rules.summary}")
            shown = rules.id
        mark = " (full)" if case.tier == "full" else ""
        click.echo(f"  {case.name}{mark}: {case.catches}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def doctor(as_json: bool) -> None:
    """Say what is installed and works: extension, judge, engines, goldens, and why CUDA is off.

    Exit code 1 when something that kdtr needs is missing.
    """
    import json
    from dataclasses import asdict

    from kdtr import doctor as examination

    found = list(examination.checks())
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        width = max(len(one.name) for one in found)
        for one in found:
            colour = {True: "green", False: "red", None: None}[one.ok]
            click.echo(f"{click.style(one.mark, fg=colour)}  {one.name:{width}}  {one.text}")
    raise SystemExit(1 if any(one.ok is False for one in found) else 0)


@cli.command()
@click.argument("file", type=_File(path_type=Path))
def textconv(file: Path) -> None:
    """Print FILE as text that git can compare.

    Once for each clone: git config diff.kdtr.textconv "kdtr textconv"
    """
    from kdtr import textconv as text

    for line in text.lines(file):
        click.echo(line)


@cli.command()
@click.argument("op")
def describe(op: str) -> None:
    """Print the contract of OP in Markdown: meaning, arguments, conventions, budget, cases."""
    from kdtr import op_page

    click.echo(op_page.page(op), nl=False)


@cli.command()
@click.argument("file", type=_File(path_type=Path))
@click.argument("tensor", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@click.option("--meta", is_flag=True, help="Metadata of the file and of its tensors.")
@click.option("--verify", is_flag=True, help="Check every rule and digest first.")
@click.option("--names", is_flag=True, help="Names of the tensors, one a line.")
@click.option("--identity", is_flag=True, help="The identity of the content only.")
@click.option("--map", "as_map", is_flag=True, help="Where everything is in the file.")
@click.option("--hex", "as_hex", is_flag=True, help="Bytes of TENSOR with offsets and values.")
@click.option("--histogram", is_flag=True, help="Counts of the values of TENSOR as bars.")
@click.option("--all-errors", is_flag=True, help="Every rule that a damaged file breaks.")
@click.option(
    "--format",
    "notation",
    type=click.Choice(["dec", "hex", "bits", "float"]),
    default="dec",
    help="How the values of TENSOR are written; float is C's %a.",
)
def inspect(
    file: Path,
    tensor: str | None,
    as_json: bool,
    meta: bool,
    verify: bool,
    names: bool,
    identity: bool,
    as_map: bool,
    as_hex: bool,
    histogram: bool,
    all_errors: bool,
    notation: str,
) -> None:
    """Show the tensors of FILE with statistics, or the values of one: 'out[0, :4, ::2]'.

    FILE may be .kdtr, .npz, .npy or .safetensors, or a folder, which gives a line a file. A
    damaged KDTR file is shown as far as it can be read, with the rules that it breaks.
    """
    import json

    from kdtr import convert as formats
    from kdtr import inspection
    from kdtr.errors import FormatError

    if (as_hex or histogram) and not tensor:
        raise click.UsageError(f"{'--hex' if as_hex else '--histogram'} needs a TENSOR")
    if file.is_dir():
        if tensor or as_json or meta or names or identity or as_map or all_errors:
            raise click.UsageError(f"a folder gives a line a file: name one in {file}")
        raise SystemExit(_inspect_folder(file, verify))
    if as_map or all_errors:
        raise SystemExit(_inspect_damage(file, as_map, limit=10**6))
    try:
        with formats.opened(file, verify="deep" if verify else "lazy") as opened:
            if identity:
                lines = iter([opened.identity])
            elif names:
                lines = map(inspection.escape, opened)
            elif as_json:
                lines = iter([json.dumps(inspection.as_dict(opened), indent=1, allow_nan=False)])
            elif meta:
                lines = inspection.meta_lines(opened)
            elif tensor and as_hex:
                lines = inspection.hexdump(opened, tensor)
            elif tensor and histogram:
                lines = inspection.histogram(opened, tensor)
            elif tensor:
                lines = inspection.grid(inspection.take(opened, tensor, notation))  # type: ignore[arg-type]
            else:
                lines = inspection.overview(opened)
            for line in lines:
                click.echo(line)
    except FormatError as error:
        if error.code in ("E_IO", "E_NOT_FOUND") or file.suffix in (".npz", ".npy", ".safetensors"):
            raise
        raise SystemExit(_inspect_damage(file, not (names or identity or meta), limit=20)) from None


def _inspect_damage(file: Path, as_map: bool, limit: int) -> int:
    """Print a file's map, and the rules that it breaks on standard error; return the exit code."""
    from kdtr import container, file_map

    try:
        data = file.read_bytes()
    except OSError as error:
        raise KdtrError(str(file), error.strerror or str(error)) from None
    errors = container.all_errors(data, str(file))
    if as_map:
        for line in file_map.lines(data, errors):
            click.echo(line)
    for one in errors[:limit]:
        click.echo(f"error: {one} [byte {one.offset}]", err=True)
    if len(errors) > limit:
        click.echo(f"{len(errors) - limit} more: --all-errors", err=True)
    return KdtrError.exit_code if errors else 0


def _inspect_folder(folder: Path, deep: bool) -> int:
    """Print a line for each file below a folder; return 1 when one is damaged.

    Raises KdtrError when there is none: nothing was looked at.
    """
    from kdtr import container, inspection
    from kdtr import convert as formats
    from kdtr.errors import FormatError

    rows, code = [["file", "identity", "tensors", "bytes", "op", "case"]], 0
    suffixes = (".kdtr", ".npz", ".npy", ".safetensors")
    for path in sorted(p for p in folder.rglob("*") if p.suffix in suffixes):
        name = inspection.escape(str(path.relative_to(folder)))
        size = str(path.stat().st_size)
        try:
            container.want_file(path)
            with formats.opened(path, verify="deep" if deep else "eager") as file:
                what = [str(file.meta.get(key, "")) for key in ("op", "case")]
                shown = map(inspection.escape, what)
                rows.append([name, file.identity[6:18], str(len(file)), size, *shown])
        except KdtrError as error:
            code = 1
            why = error.code if isinstance(error, FormatError) else error.what
            rows.append([name, "DAMAGED", "", size, why, ""])
    if len(rows) == 1:
        raise KdtrError(str(folder), "no file to inspect is in the folder", " ".join(suffixes))
    for line in inspection.columns(rows):
        click.echo(line)
    return code


@cli.command()
@click.argument("files", nargs=-1, required=True, type=_File())
@click.option("--deep", is_flag=True, help="Check the SHA-256 digests too (rules 45 and 46).")
def validate(files: tuple[str, ...], deep: bool) -> None:
    """Check FILES against the format: one line each, the path and OK or the broken rule's code.

    Exit code 1 when any file is refused.
    """
    from kdtr import container
    from kdtr.errors import FormatError

    refused = False
    for file in files:
        try:
            container.validate(file, deep=deep)
            verdict = "OK"
        except FormatError as error:
            verdict, refused = error.code, True
        click.echo(f"{file} {verdict}")
    raise SystemExit(1 if refused else 0)


@cli.command()
@click.argument("sources", nargs=-1, required=True, type=_File())
@click.argument("target")
@click.option("--rename", is_flag=True, help="Percent-encode names that KDTR forbids.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["flashinfer-trace"]),
    help="Write fixtures (files or folders) as a data set in the folder TARGET.",
)
@click.option(
    "--from",
    "origin",
    type=click.Choice(["flashinfer-trace"]),
    help="Read the data set in the folder SOURCE; write its workloads into TARGET.",
)
def convert(
    sources: tuple[str, ...], target: str, rename: bool, kind: str | None, origin: str | None
) -> None:
    """Convert SOURCE to TARGET: .kdtr from or to .safetensors or .npz, without loss.

    Or, with --to and --from, fixtures to a FlashInfer Trace data set and its workloads to KDTR.
    """
    from kdtr import convert as formats

    if kind:
        from kdtr import flashinfer_trace

        paths = [
            file
            for one in map(Path, sources)
            for file in (sorted(one.rglob("*.kdtr")) if one.is_dir() else [one])
        ]
        summary = flashinfer_trace.export(paths, Path(target))
        for path, why in summary.left_out.items():
            click.echo(f"left out {path}: {why}")
        click.echo(f"{len(summary.definitions)} definitions, {summary.workloads} workloads")
        return
    if len(sources) != 1:
        raise click.UsageError("one SOURCE, unless --to is given")
    if origin:
        from kdtr import flashinfer_trace

        for written in flashinfer_trace.load(Path(sources[0]), Path(target)):
            click.echo(written)
        return
    click.echo(f"{formats.convert(sources[0], target, rename)}  {target}")


_ops = click.option("--ops", multiple=True, metavar="OP", help="Only this op; may be repeated.")


def _one_pattern(_: click.Context, __: click.Parameter, patterns: tuple[str, ...]) -> str:
    if len(patterns) > 1:
        raise KdtrError("--case", "patterns", "one", len(patterns))
    return patterns[0] if patterns else "*"


_pattern = click.option(
    "--case",
    "pattern",
    multiple=True,
    callback=_one_pattern,
    metavar="GLOB",
    help="Only cases that match this pattern; given once.",
)


def _fixtures(command: str, ops: tuple[str, ...], tier: str, pattern: str, jobs: int) -> list[Path]:
    """Paths of the goldens that a command asks for; what is missing of them is generated."""
    from kdtr import engine, goldens

    if why := engine.missing():
        raise KdtrError(command, why)
    with _progress("generating", goldens.PLACE) as progress:
        paths = goldens.ensure(ops, _as_tier(tier), pattern=pattern, jobs=jobs, progress=progress)
    if not paths:
        raise KdtrError(command, "no case matches", got=pattern)
    return paths


def _own(path: str | None, engine: str, alone: bool) -> list[str]:
    """A file that several engines write is written once for each, with the engine's name."""
    if path is None:
        return []
    file = Path(path)
    return [str(file if alone else file.with_suffix(f".{Path(engine).stem}{file.suffix}"))]


@cli.command()
@click.option(
    "--engine",
    "engines",
    multiple=True,
    help="cpu, cuda, ./PLUGIN.so[:CONFIG], MODULE[:OBJECT] or cmd:PROGRAM; may be repeated. "
    "All of the project's own that can run, by default.",
)
@_ops
@_pattern
@_tier
@_jobs
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Certificates.")
@click.option("--json", "as_json", metavar="FILE", help="Results as JSON lines.")
@click.option("--junit", metavar="FILE", help="Results as JUnit XML.")
@click.option("--save", metavar="DIR", help="Keep what a failing engine gave, as KDTR files.")
@click.option(
    "--repeat", type=click.IntRange(0), default=0, help="Run again; bits must not change."
)
@click.option("--alone", is_flag=True, help="Requests of a batch alone too; they must pass.")
@click.option("--invariant", is_flag=True, help="As --alone, with the bits of the batch.")
@click.option("--graph", is_flag=True, help="Replays of a captured CUDA graph too.")
@click.option("--expect", metavar="FILE", help="Known failures: xfail and waive lines.")
@click.option("--timeout", type=bench.Finite(0, 1e6, min_open=True), help="Seconds a case [60].")
@click.option("--no-isolate", is_flag=True, help="In the judge's own process, for a debugger.")
def certify(
    engines: tuple[str, ...],
    ops: tuple[str, ...],
    pattern: str,
    tier: str,
    jobs: int,
    out: Path | None,
    as_json: str | None,
    junit: str | None,
    save: str | None,
    repeat: int,
    alone: bool,
    invariant: bool,
    graph: bool,
    expect: str | None,
    timeout: float | None,
    no_isolate: bool,
) -> None:
    """Judge engines on the goldens; what is missing of them is generated first.

    Ends with a table of ops and verdicts, and writes a certificate for each engine.
    """
    from kdtr import engine, goldens

    paths = _fixtures("certify", ops, tier, pattern, jobs)
    absent = ""
    if not engines:
        found, absent = engine.usable()
        engines = tuple(found)
    codes = []
    for one in engines:
        arguments: list[str | Path] = ["certify", "--engine", one, "--lock", goldens.LOCK]
        if engine.in_python(one):
            arguments += ["--python", sys.executable]
        if out is not None:
            folder = out / Path(one).stem
            folder.mkdir(parents=True, exist_ok=True)
            arguments += ["--out", folder]
        for flag, value in (("--json", as_json), ("--junit", junit), ("--save", save)):
            for own in _own(value, one, len(engines) == 1):
                arguments += [flag, own]
        if repeat:
            arguments += ["--repeat", str(repeat)]
        if timeout is not None:
            arguments += ["--timeout", str(timeout)]
        if expect is not None:
            arguments += ["--expect", expect]
        flags = {"alone": alone, "invariant": invariant, "graph": graph, "no-isolate": no_isolate}
        arguments += [f"--{name}" for name, given in flags.items() if given]
        codes.append(engine.conform([*arguments, *paths]))
    if absent:
        click.echo(f"cuda: not certified, {absent}")
    raise SystemExit(max(codes))


@cli.command()
@click.option("--engine", required=True, help="As for certify.")
@_ops
@_pattern
@_tier
@_jobs
@click.option("--json", "as_json", metavar="FILE", help="Every case, as JSON lines.")
def support(
    engine: str, ops: tuple[str, ...], pattern: str, tier: str, jobs: int, as_json: str | None
) -> None:
    """Say how many cases of each op an engine runs, and why not the others. Runs no kernel.

    Exit code 2 when it runs none.
    """
    from kdtr import engine as compiled

    paths = _fixtures("support", ops, tier, pattern, jobs)
    arguments: list[str | Path] = ["support", "--engine", engine]
    if compiled.in_python(engine):
        arguments += ["--python", sys.executable]
    if as_json:
        arguments += ["--json", as_json]
    raise SystemExit(compiled.conform([*arguments, *paths]))


@cli.command(name="check")
@click.argument("ops", nargs=-1)
@click.option("--engine", required=True, help="As for certify.")
@click.option("--count", "-n", type=click.IntRange(1), default=4, show_default=True, help="Calls.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first.")
@click.option(
    "--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True
)
@click.option("--timeout", type=bench.Finite(0, 1e6, min_open=True), default=600.0, help="An op.")
@click.option("--no-isolate", is_flag=True, help="In this process, for a debugger.")
def check_(
    ops: tuple[str, ...],
    engine: str,
    count: int,
    seed: int,
    size: str,
    timeout: float,
    no_isolate: bool,
) -> None:
    """Check an engine without goldens: pairs of random calls whose results must be related.

    A node is its ancestor path run alone, prefix and tail merge to the whole, scaled values give
    scaled outputs, token ids are only names. One line for each relation of OPS (all that have
    any, by default). Exit codes: 0 all hold, 1 one does not, 2 the engine runs none of the ops.
    """
    import subprocess

    from kdtr import engine as compiled
    from kdtr import relations

    names = [op.partition("@")[0] for op in ops] or list(relations.RELATIONS)
    for name in names:
        if name not in relations.RELATIONS:
            raise KdtrError(name, "the op has no relations", ", ".join(relations.RELATIONS))
    codes = set()
    if not no_isolate:
        head = [sys.executable, "-m", "kdtr", "check", "--no-isolate", "--engine", engine]
        head += ["--count", str(count), "--seed", str(seed), "--size", size]
        for name in names:
            try:
                code = compiled.run_alone([*head, name], timeout)
            except subprocess.TimeoutExpired:
                click.echo(f"no  {name}: no answer within {timeout:g} s")
                code = 1
            if code < 0:
                click.echo(f"no  {name}: killed by signal {-code}")
            codes.add(1 if code < 0 else code)
    else:
        run = relations.Runner(engine)
        for name in names:
            codes.add(_check_op(run, name, range(seed, seed + count), size))
    raise SystemExit(1 if 1 in codes else 0 if 0 in codes else 2)


def _check_op(run: Any, name: str, seeds: range, size: str) -> int:
    from kdtr import relations

    try:
        found = relations.check(run, name, seeds, relations.SIZES[size])
    except relations.UnsupportedError as error:
        click.echo(f"--  {name}: not supported: {error}")
        return 2
    except EngineError as error:
        click.echo(f"{click.style('no', fg='red')}  {name}: run failed: {error}")
        return 1
    for one in found:
        worst = one.worst
        mark = click.style("ok", fg="green") if worst.holds else click.style("no", fg="red")
        rule = "bit for bit" if worst.rule == "bits" else f"{worst.worst:.3g} of the budgets"
        line = f"{mark}  {name} {worst.relation:18} {one.pairs:3} pairs, {rule}"
        click.echo(line if worst.holds else f"{line}; seed {one.seed}: {worst.text}")
    return 0 if all(one.worst.holds for one in found) else 1


@cli.command()
@click.argument("ops", nargs=-1)
@click.option("--mutants", metavar="LIB", help="Library of mutants; the project's by default.")
@click.option("--json", "as_json", metavar="FILE", help="The separation matrix as JSON.")
@click.option("--md", metavar="FILE", help="The separation matrix as Markdown.")
@_jobs
def score(
    ops: tuple[str, ...], mutants: str | None, as_json: str | None, md: str | None, jobs: int
) -> None:
    """Run every kernel with a planted fault: each must be rejected by a case of its op.

    The unmutated control must pass everything and agree with the gold to 2^-40. Ends with the
    number killed and survived. Exit code 1 when one survives, or a case misses one that it names.
    """
    from kdtr import engine

    arguments: list[str | Path] = ["score", "--jobs", str(jobs)]
    for flag, value in (("--mutants", mutants), ("--json", as_json), ("--md", md)):
        if value:
            arguments += [flag, value]
    raise SystemExit(engine.conform([*arguments, *_fixtures("score", ops, "small", "*", jobs)]))


@cli.command()
@click.argument("certificate", type=_File(path_type=Path))
@click.option("--library", type=_File(path_type=Path), help="The engine's file, to hash.")
@click.option("--lock", type=_File(path_type=Path), help="LOCK; this kdtr's by default.")
def verify(certificate: Path, library: Path | None, lock: Path | None) -> None:
    """Check a CERTIFICATE: its result, the goldens, the contracts, the judge and the library.

    Exit codes: 0 all that was checked holds, 1 something does not, 2 it is no certificate.
    """
    from kdtr import certificate as paper

    good = True
    for check in paper.verify(certificate, library, lock):
        mark, colour = {True: ("ok", "green"), False: ("no", "red"), None: ("--", None)}[check.ok]
        click.echo(f"{click.style(mark, fg=colour)}  {check.name}: {check.text}")
        good = good and check.ok is not False
    raise SystemExit(0 if good else 1)


@cli.command()
@click.argument("results", nargs=-1, required=True, type=_File(path_type=Path))
@click.option("--html", "target", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--matrix", type=_File(path_type=Path), help="The JSON of kdtr score, to show too.")
def report(results: tuple[Path, ...], target: Path, matrix: Path | None) -> None:
    """Write one HTML page of RESULTS, the JSON lines of certify, one file for each engine."""
    from kdtr import report as pages

    shown = [pages.load(one) for one in results]
    text = pages.page(shown, pages.load_matrix(matrix) if matrix else None)
    target.write_text(text, encoding="utf-8")
    click.echo(f"{sum(len(one.cases) for one in shown)} results  {target}")


@cli.command(name="diff")
@click.argument("want", type=_File(exists=True, dir_okay=False))
@click.argument("got", type=_File(exists=True, dir_okay=False))
@click.option("--atol", type=click.FloatRange(0), default=0.0, help="Largest absolute error.")
@click.option("--rtol", type=click.FloatRange(0), default=0.0, help="Times |want|, added to atol.")
@click.option("--ulp", type=click.FloatRange(0), default=0.0, help="Steps of the expected grid.")
@click.option("--values", is_flag=True, help="By value: -0 equals 0, NaN equals NaN.")
@click.option("--max-mismatch-ratio", "ratio", type=click.FloatRange(0, 1), default=0.0)
@click.option(
    "--override", multiple=True, metavar="GLOB=ATOL", help="Own atol for tensors; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
@click.option("--md", "as_md", is_flag=True, help="A table for a pull request.")
@click.option("--github", is_flag=True, help="Workflow annotations.")
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Write one HTML page.")
@click.option("--png", type=click.Path(dir_okay=False), help="Write the first heat map.")
@click.option("--full", is_flag=True, help="List equal tensors too.")
def diff_(
    want: str,
    got: str,
    override: tuple[str, ...],
    as_json: bool,
    as_md: bool,
    github: bool,
    page: str | None,
    png: str | None,
    full: bool,
    **bounds: Any,
) -> None:
    """Compare GOT with WANT: what differs, where, by how much, and why.

    Files may be .kdtr, .npz, .npy or .safetensors, of the same kind or not. Bitwise by default; a
    fixture against an engine's actual.kdtr by the fixture's own budgets.
    Exit codes: 0 equal or within, 1 different, 2 not comparable.
    """
    import json

    from kdtr import convert as formats
    from kdtr import diff_report
    from kdtr.diff import Tolerance, diff

    default = Tolerance(**bounds)
    own = {}
    for item in override:
        glob, _, number = item.rpartition("=")
        try:
            own[glob] = Tolerance(atol=float(number))
        except ValueError:
            raise KdtrError("--override", "not GLOB=ATOL", "out*=1e-3", item) from None
    with formats.opened(want) as a, formats.opened(got) as b:
        outcome = diff(a, b, None if default == Tolerance() else default, own)
    if page:
        Path(page).write_text(diff_report.page(outcome), encoding="utf-8")
    heat = next((t.heat for t in outcome.tensors if t.heat), None)
    if png and heat:
        Path(png).write_bytes(diff_report.png(heat))
    if as_json:
        click.echo(json.dumps(outcome.as_dict(), indent=1))
    elif as_md:
        click.echo(diff_report.markdown(outcome), nl=False)
    elif github:
        for line in diff_report.github(outcome):
            click.echo(line)
    else:
        colours = {"X": "red", "!": "red", "-": "red", "+": "yellow", "~": "cyan", "=": "green"}
        for line in diff_report.lines(outcome, full):
            click.secho(line, fg=colours.get(line[:1]))
    click.get_current_context().exit(outcome.exit_code)


_model = click.option(
    "--model",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    required=True,
    help="Checkpoint: config.json, model.safetensors, and for trees draft_heads.safetensors; or "
    "both as .kdtr.",
)
_prompt = click.option(
    "--prompt-ids",
    required=True,
    metavar="IDS",
    help="Token ids, separated by commas or spaces; - reads them from standard input.",
)
_engine = click.option(
    "--engine", default="cpu", show_default=True, help="cpu, cuda or the path of an engine library."
)

_precision = click.option(
    "--precision",
    type=click.Choice(["f32", "bf16"]),
    default="f32",
    show_default=True,
    help="Of rows, cache and weights; logits are f32 in both.",
)


def _ids(text: str) -> list[int]:
    given = sys.stdin.read() if text == "-" else text
    words = given.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        raise KdtrError("--prompt-ids", "not token ids", "integers", given.strip()[:60]) from None


@cli.command()
@_model
@_prompt
@click.option("--count", "-n", type=click.IntRange(1), default=64, show_default=True)
@click.option("--tree-budget", type=click.IntRange(0, 1024), default=0, help="0: no draft tree.")
@_engine
@_precision
@click.option("--max-context", type=click.IntRange(1, 2**31 - 1), default=2048, show_default=True)
def decode(
    folder: str,
    prompt_ids: str,
    count: int,
    tree_budget: int,
    engine: str,
    precision: str,
    max_context: int,
) -> None:
    """Generate token ids greedily, one by one or by draft trees; statistics go to stderr."""
    import time

    from kdtr import decode as model

    seen = model.Statistics()
    with model.Decoder(
        folder,
        engine,
        max_context=max_context,
        max_budget=max(tree_budget, 1),
        precision=precision,
    ) as decoder:
        start = time.perf_counter()
        try:
            for token in model.generate(decoder, _ids(prompt_ids), count, tree_budget, seen):
                click.echo(f"{' ' if seen.tokens > 1 else ''}{token}", nl=False)
                sys.stdout.flush()
        finally:
            if seen.tokens:  # what stops it is a line of its own
                click.echo()
        seconds = time.perf_counter() - start
    click.echo(f"{seen.tokens} tokens in {seconds:.2f} s, prompt included", err=True)
    if seen.accepted:
        click.echo(
            f"{len(seen.accepted)} rounds, {seen.mean_accepted:.2f} drafts accepted a round, "
            f"histogram {' '.join(map(str, seen.histogram))}",
            err=True,
        )


@cli.command()
@_model
@_prompt
@click.option(
    "--tree-budget",
    type=click.IntRange(0, 1024),
    default=0,
    help="And a round of such draft trees.",
)
@_engine
@_precision
@click.option(
    "--all", "every", is_flag=True, help="Every stage, not only the worst and the faulty."
)
def localize(
    folder: str, prompt_ids: str, tree_budget: int, engine: str, precision: str, every: bool
) -> None:
    """Find the first stage of a model's pass that breaks its budget.

    Each kernel is judged on the inputs that it got, against its op's reference. Exit codes: 0
    none does, 1 the first one is named, 2 the model could not be run.
    """
    from kdtr import decode as model

    with model.Decoder(
        folder, engine, max_budget=max(tree_budget, 1), precision=precision
    ) as decoder:
        verdicts = model.localize(decoder, _ids(prompt_ids), tree_budget)
    faulty = next((v for v in verdicts if not v.worst <= 1), None)
    for verdict in verdicts if every else ():
        click.echo(f"{verdict.stage:20} {verdict.op:14} {verdict.output:8} {verdict.worst:.3g}")
    if faulty is None:
        worst = max(verdicts, key=lambda v: v.worst)
        click.echo(
            f"{len(verdicts)} stages within budget; the worst is {worst.stage} "
            f"at {worst.worst:.3g} of the hard budget of '{worst.output}'"
        )
        return
    click.echo(
        f"{faulty.stage}: {faulty.op} is at fault: '{faulty.output}' is at {faulty.worst:.3g} of "
        "its hard budget, every earlier stage is within"
    )
    click.get_current_context().exit(1)
