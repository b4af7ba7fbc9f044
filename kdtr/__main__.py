"""`python -m kdtr`, and the installed command `kdtr`."""

from __future__ import annotations

try:
    from kdtr.cli import main
except KeyboardInterrupt:  # while Python still loads
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
