"""The command line on one page, in Markdown, from the commands' own help."""

from __future__ import annotations

import click

from kdtr.cli import cli


def page() -> str:
    """Usage and options of every command."""
    context = click.Context(cli, info_name="kdtr", max_content_width=90, terminal_width=90)
    parts = ["# Command line", "", "```text", cli.get_help(context), "```"]
    for name, command in sorted(cli.commands.items()):
        inner = click.Context(
            command, parent=context, info_name=name, max_content_width=90, terminal_width=90
        )
        parts += ["", f"## {name}", "", "```text", command.get_help(inner), "```"]
    return "\n".join(parts) + "\n"
