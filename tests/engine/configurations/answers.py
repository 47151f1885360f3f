"""The reference's answers as they are kept: one file, since there are many of them and each is small."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.arrays import F32

ANSWERS = Path(__file__).parent / "answers.npz"
Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Answer:
    """`asked`: a number that changes with the case; `shapes`: of the checkpoint's tensors, by name.

    `logits` [positions, V] at the case's positions, which may differ from ours by `atol`.
    """

    asked: int
    shapes: Shapes
    atol: float
    logits: F32


def save_answers(answers: Mapping[str, Answer]) -> None:
    """Writes the file."""
    layouts: list[Shapes] = []
    facts = {}
    for name, answer in answers.items():
        if answer.shapes not in layouts:
            layouts.append(answer.shapes)
        facts[name] = (answer.asked, layouts.index(answer.shapes), answer.atol, answer.logits.shape)
    text = json.dumps({"facts": facts, "layouts": layouts}, separators=(",", ":"))
    logits = np.concatenate([answer.logits.ravel() for answer in answers.values()])
    np.savez_compressed(ANSWERS, facts=np.frombuffer(text.encode(), np.uint8), logits=logits)


def load_answers() -> dict[str, Answer]:
    """What the file holds, by case."""
    with np.load(ANSWERS) as arrays:
        text, logits = json.loads(arrays["facts"].tobytes()), arrays["logits"]
    answers, at = {}, 0
    for name, (asked, layout, atol, shape) in text["facts"].items():
        count = shape[0] * shape[1]
        answers[name] = Answer(asked, text["layouts"][layout], atol, logits[at : at + count].reshape(shape))
        at += count
    return answers
