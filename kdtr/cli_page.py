"""The command line on one page, in Markdown, from the commands' own help."""

from __future__ import annotations

from collections.abc import Iterator

import click

from kdtr.cli import cli


def page() -> str:
    """Usage and options of every command."""
    context = _context(cli, None, "kdtr")
    parts = ["# Command line", "", "```text", cli.get_help(context), "```"]
    return "\n".join([*parts, *_commands(context, cli, "")]) + "\n"


def _context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    return click.Context(
        command, parent=parent, info_name=name, max_content_width=90, terminal_width=90
    )


def _commands(context: click.Context, group: click.Group, prefix: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        inner = _context(command, context, name)
        yield from ("", f"## {prefix}{name}", "", "```text", command.get_help(inner), "```")
        if isinstance(command, click.Group):
            yield from _commands(inner, command, f"{prefix}{name} ")
