"""`python -m kdtr`, and the installed command `kdtr`."""

from __future__ import annotations

from kdtr.cli import main

if __name__ == "__main__":
    main()
