"""Where the program begins: quiet from the first moment, before anything is imported that takes time.

Nobody can catch a Ctrl-C that comes while modules are imported, or after a command has ended. So the system's own
handling holds then: the process just ends, and its shell sees 130.
"""

import sys
from types import TracebackType


def _say_unless_interrupted(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _say_unless_interrupted  # the next import alone takes a hundredth of a second

import signal  # noqa: E402


def main() -> None:
    """The console script. Raises SystemExit."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else whoever started us wants none
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from swarm.cli.frame import run
    from swarm.cli.streams import mend

    mend()
    code = run(sys.argv[1:], interruptible=ours)
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()
