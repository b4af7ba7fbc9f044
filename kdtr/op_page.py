"""One op on one page, in Markdown, from its contract and its cases: nothing to fall out of date."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from kdtr import case as case_module
from kdtr import contract
from kdtr.case import Case
from kdtr.contract import Contract, Tensor

_JUDGED = {"E": "exact", "B": "budget", "S": "set", None: ""}


def page(op: str) -> str:
    """The page of an op, by name or id. Raises ContractError when there is none."""
    rules = contract.load(op)
    cases = list(case_module.cases(rules.op)) if rules.op in case_module.ops() else []
    return "\n".join(_lines(rules, cases)) + "\n"


def index() -> str:
    """A page that lists all ops, with links to `<op>.md`."""
    rows = [["op", "what it does", "cases"]]
    for op in contract.ops():
        rules = contract.load(op)
        count = sum(1 for _ in case_module.cases(op)) if op in case_module.ops() else 0
        rows.append([f"[`{rules.id}`]({op}.md)", _cell(rules.summary), str(count)])
    intro = "Made from the contracts and cases when this site is built; `kdtr describe OP` prints"
    head = ["# Ops", "", f"{intro} one.", ""]
    return "\n".join([*head, *_table(rows)]) + "\n"


def _lines(rules: Contract, cases: Sequence[Case]) -> Iterator[str]:
    yield f"# {rules.op}"
    yield from ("", f"`{rules.id}` · digest `{rules.digest[:16]}`", "", _text(rules.summary), "")
    yield from ("## Meaning", "", "```text", *_sentences(rules.formula), "```", "")
    if rules.source:
        yield from (f"Source: {_text(rules.source)}", "")
    yield from ("## Arguments", "")
    head = ["name", "role", "types", "axes", "judged", "meaning"]
    yield from _table([head, *(_argument(t) for t in rules.tensors)])
    if rules.attrs:
        yield from ("", "## Attributes", "")
        attrs = [
            [f"`{a.name}`", a.type, ", ".join(f"`{c}`" for c in a.choices), _cell(a.doc)]
            for a in rules.attrs
        ]
        yield from _table([["name", "type", "one of", "meaning"], *attrs])
    if rules.conventions:
        yield from ("", "## Conventions", "", "Where projects disagree, this op means:", "")
        named = [[f"`{name}`", _cell(text)] for name, text in rules.conventions.items()]
        yield from _table([["convention", "here"], *named])
    yield from ("", "## Arithmetic and budget", "")
    profiles = [[f"`{name}`", _cell(text)] for name, text in rules.profiles.items()]
    yield from _table([["profile", "what a kernel may do"], *profiles])
    if rules.budget:
        yield from ("", "**Budget.**", "", "```text", *_sentences(rules.budget), "```")
    for title, text in (("Why", rules.why), ("Limits", rules.limits)):
        if text:
            yield from ("", f"**{title}.** {_text(text)}")
    if cases:
        yield from ("", "## Cases", "", "Each is there to catch one mistake.", "")
        yield from _table([["case", "tier", "profile", "catches"], *(_case(c) for c in cases)])


def _sentences(text: str) -> Iterator[str]:
    """One sentence a line, its parts after a semicolon below it, wrapped with an indent."""
    for sentence in re.split(r"(?<=\.) ", text):
        for i, part in enumerate(re.split(r"(?<=;) ", sentence)):
            yield from textwrap.wrap(
                part, 80, initial_indent="  " * (i > 0), subsequent_indent="    "
            )


def _argument(t: Tensor) -> list[str]:
    notes = [t.doc]
    notes += [f"Present when {t.when}."] if t.when else []
    notes += [f"NaN: {t.nan}."] if t.nan != "forbid" else []
    axes = "[" + ", ".join(t.axes) + "]"
    types = " ".join(f"`{d}`" for d in t.dtypes)
    return [
        f"`{t.name}`",
        t.role,
        types,
        f"`{axes}`",
        _JUDGED[t.judged],
        _cell(" ".join(filter(None, notes))),
    ]


def _case(c: Case) -> list[str]:
    return [f"`{c.name}`", c.tier, f"`{c.profile}`", _cell(c.catches)]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *body = rows
    for row in (head, ["---"] * len(head), *body):
        yield "| " + " | ".join(row) + " |"


def _text(text: str) -> str:
    """Plain text as Markdown that shows it unchanged; `_` inside a word is plain as it is."""
    return re.sub(r"([\\`*\[\]<>#|]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _cell(text: str) -> str:
    return _text(" ".join(text.split()))
