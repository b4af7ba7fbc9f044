"""The process in which kdtr-conform runs an engine that is written in Python.

Paths come on standard input, one a line; results go to the descriptor `--fd`, one JSON a line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from kdtr.errors import KdtrError
from kdtr.ops import open_engine


def main() -> int:
    """Serve one engine until standard input ends."""
    parser = argparse.ArgumentParser(prog="kdtr.worker")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--save", default="")
    for flag in ("--alone", "--invariant", "--graph", "--support"):
        parser.add_argument(flag, action="store_true")
    options = vars(parser.parse_args())
    spec, fd = options.pop("engine"), options.pop("fd")
    try:
        engine = open_engine(spec)
    except KdtrError as error:
        line = json.dumps({"kind": "error", "why": str(error)}) + "\n"
        os.write(fd, line.encode())
        return error.exit_code
    code: int = engine.serve(spec, fd, **options)
    return code


if __name__ == "__main__":
    sys.exit(main())
