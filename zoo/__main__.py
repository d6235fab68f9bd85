"""`python -m zoo` is the command `zoo`."""

import signal
import sys


def main() -> int:
    """The command `zoo`, as a function: the process may go on after it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during an import may be lost, as an exception in a callback

    from zoo.tools.cli import main

    return main()


def command() -> int:
    """The command `zoo` as the whole of a process, which ends within some seconds of it, whatever threads an env has left."""
    exit_code: object = 1
    try:
        exit_code = main()
    except SystemExit as ended:  # after a signal, and after --help
        if ended.code is None:
            exit_code = 0
        else:
            exit_code = ended.code
        raise
    finally:
        from zoo.core.processes import end_in_time

        end_in_time(exit_code if isinstance(exit_code, int) else 1)
    return exit_code


if __name__ == '__main__':
    sys.exit(command())
