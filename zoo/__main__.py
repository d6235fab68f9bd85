"""`python -m zoo` is the command `zoo`."""

import signal
import sys


def main() -> int:
    """The command `zoo`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during an import may be lost, as an exception in a callback

    from zoo.tools.cli import main

    return main()


if __name__ == '__main__':
    sys.exit(main())
