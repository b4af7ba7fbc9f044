"""Give this virtual environment the commands `kdtr` and `kdtr-conform` of the source tree.

An editable install would compile the engine a second time, apart from the build folder.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "kdtr": "from kdtr.__main__ import main\n\nmain()\n",
    "kdtr-conform": "from kdtr.engine import exec_conform\n\nexec_conform()\n",
}


def main() -> None:
    """Write `kdtr.pth` and the two programs into the running environment."""
    if sys.prefix == sys.base_prefix:
        sys.exit("commands: want a virtual environment, got the system's Python")
    Path(sysconfig.get_path("purelib"), "kdtr.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    for name, body in COMMANDS.items():
        program = Path(sysconfig.get_path("scripts"), name)
        program.write_text(f"#!{sys.executable}\n{body}", encoding="utf-8")
        program.chmod(0o755)


if __name__ == "__main__":
    main()
