"""How long to leave alone what failed."""


def pause_s(first_s: float, failures: int, longest_s: float) -> float:
    """The seconds to wait after one more failure: twice as many after each, up to a longest pause.

    `failures` are those before; there may be any number of them.
    """
    return min(first_s * 2.0 ** min(failures, 64), longest_s)
