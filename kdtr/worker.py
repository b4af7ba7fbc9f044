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
    parser.add_argument("--support", action="store_true")
    options = parser.parse_args()
    try:
        engine = open_engine(options.engine)
    except KdtrError as error:
        line = json.dumps({"kind": "error", "why": str(error)}) + "\n"
        os.write(options.fd, line.encode())
        return error.exit_code
    code: int = engine.serve(
        options.engine, options.repeat, options.save, options.fd, options.support
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
