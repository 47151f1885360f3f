"""Whether a text has power over a terminal."""

from __future__ import annotations

import unicodedata

FORBIDDEN_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}
BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def harmless(text: str) -> bool:
    """Nothing in it is obeyed by a terminal, or cannot be written to one."""
    return all(
        letter in "\n\t"
        or (unicodedata.category(letter) not in FORBIDDEN_CATEGORIES and ord(letter) not in BIDI)
        for letter in text
    )
