"""Text of models and peers, made harmless before a terminal sees it.

Every control character goes, one by one and without looking at its neighbours: so nothing depends on where a
stream was cut, and what is left of an escape sequence is plain letters.
"""

import unicodedata

# Bidirectional controls reorder what a reader sees; line and paragraph separators break a line unasked.
_HIDDEN = {*range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0x061C, 0xFEFF}


class _Table(dict[int, int | None]):
    """What `str.translate` asks for each character, decided once and remembered."""

    def __init__(self, kept: str) -> None:
        super().__init__({ord(character): ord(character) for character in kept})

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        if category == "Cs":
            self[code] = 0xFFFD  # half a surrogate pair cannot be written out
        elif category == "Cc" or code in _HIDDEN or 0xE0000 <= code < 0xE0080:
            self[code] = None
        else:
            self[code] = code
        return self[code]


_TEXT, _LINE = _Table("\n\t"), _Table("")


def clean(text: str) -> str:
    """The text without control characters, except line feeds and tabs. Pieces may be cleaned one by one."""
    return text.translate(_TEXT)


def one_line(text: str) -> str:
    """The text on one line: white space becomes single spaces, control characters go."""
    return " ".join(text.split()).translate(_LINE)
