"""Textual's themes, and which palette goes with each."""

from __future__ import annotations

import os
from collections.abc import Mapping

from textual.theme import Theme

from tui import palette
from tui.palette import Palette

DARK = Theme(
    name="swarm-dark",
    primary="#7fb4ca",
    secondary="#8fb4e0",
    accent="#7fb4ca",
    foreground="#d5d9e0",
    background="#14171c",
    surface="#181c22",
    panel="#1f242c",
    success="#98bb8c",
    warning="#dfb778",
    error="#e88388",
    dark=True,
    variables={
        "border": "#3a424e",
        "border-blurred": "#2a303a",
        "input-selection-background": "#7fb4ca 30%",
        "block-cursor-background": "#2b3a45",
        "block-cursor-foreground": "#e8ecf2",
        "block-cursor-text-style": "none",
        "scrollbar": "#2a303a",
        "scrollbar-hover": "#3a424e",
        "scrollbar-active": "#4a5462",
        "scrollbar-background": "#14171c",
        "scrollbar-background-hover": "#14171c",
        "scrollbar-background-active": "#14171c",
    },
)
LIGHT = Theme(
    name="swarm-light",
    primary="#2f6f8f",
    secondary="#2a5d9c",
    accent="#2f6f8f",
    foreground="#2b3038",
    background="#fbfbfa",
    surface="#f5f6f6",
    panel="#eceef1",
    success="#3f7a3a",
    warning="#8f6414",
    error="#b3363c",
    dark=False,
    variables={
        "border": "#c9ced6",
        "border-blurred": "#dfe2e7",
        "input-selection-background": "#2f6f8f 25%",
        "block-cursor-background": "#d9e6ec",
        "block-cursor-foreground": "#1b2026",
        "block-cursor-text-style": "none",
        "scrollbar": "#dfe2e7",
        "scrollbar-hover": "#c9ced6",
        "scrollbar-active": "#b3bac4",
        "scrollbar-background": "#fbfbfa",
        "scrollbar-background-hover": "#fbfbfa",
        "scrollbar-background-active": "#fbfbfa",
    },
)
TERMINAL = Theme(
    name="swarm-terminal",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_blue",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    dark=True,
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "border": "ansi_bright_black",
        "border-blurred": "ansi_bright_black",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_cyan",
        "block-cursor-text-style": "none",
        "input-cursor-background": "ansi_black",
        "input-cursor-foreground": "ansi_bright_white",
        "input-cursor-text-style": "none",
        "input-selection-background": "ansi_blue",
        "input-selection-foreground": "ansi_white",
        "screen-selection-background": "ansi_blue",
        "screen-selection-foreground": "ansi_white",
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": "ansi_white",
        "scrollbar-active": "ansi_white",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
    },
)
THEMES: Mapping[str, str] = {"dark": DARK.name, "light": LIGHT.name, "terminal": TERMINAL.name}
_PALETTES: Mapping[str, Palette] = {DARK.name: palette.DARK, LIGHT.name: palette.LIGHT}


def palette_of(theme: str) -> Palette:
    """The palette that goes with a theme; themes that are not ours get the terminal's own colours."""
    return _PALETTES.get(theme, palette.TERMINAL)


def preferred(environment: Mapping[str, str] = os.environ) -> str:
    """dark or light, by COLORFGBG where the terminal sets it ("15;0": light text on black)."""
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if ground in ("7", "15") else "dark"
