"""The first of our code that runs, as ``proxyfl`` or ``python -m proxyfl``: takes Ctrl-C in hand,
then imports the rest.

Nothing has begun while modules are imported, and an exception in the middle of an import ends in a
traceback. So Ctrl-C ends the process in one line, with exit code 130. What comes before belongs to
Python: its own start, and finding this module.
"""

import os

_SAID = b"proxyfl: interrupted; nothing was begun.\n"


def stop(*_: object) -> None:
    """End the process at once: a handler of signals while nothing has begun."""
    os.write(2, _SAID)
    os._exit(130)


try:
    import signal
except KeyboardInterrupt:
    stop()


def main() -> int:
    """Run the command line; return its exit code."""
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:  # nohup has it ignored
        signal.signal(signal.SIGINT, stop)
    try:
        from proxyfl.cli import main as command

        return command.main()
    finally:
        if is_heard:  # while Python ends, Ctrl-C ends it without a word
            signal.signal(signal.SIGINT, signal.SIG_DFL)
