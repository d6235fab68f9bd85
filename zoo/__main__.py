"""`python -m zoo` is the command `zoo`."""

import signal
import sys


def main() -> int:
    """The command `zoo`. When its work is done, the process ends within some seconds, whatever threads an env has left."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during an import may be lost, as an exception in a callback

    from zoo.core.processes import end_in_time
    from zoo.tools.cli import main

    exit_code: object = 1
    try:
        exit_code = main()
    except SystemExit as ended:  # after a signal, and after --help
        exit_code = 0 if ended.code is None else ended.code
        raise
    finally:
        end_in_time(exit_code if isinstance(exit_code, int) else 1)
    return exit_code


if __name__ == '__main__':
    sys.exit(main())
