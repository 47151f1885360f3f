"""`swarm logits`: the raw numbers of a model, to hold the engine against another implementation."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.asking import NO_TOKEN_NEEDED, NOBODY_TO_TRACE, Asking, asking_options, say_summary
from swarm.cli.options import (
    DIRECTORY,
    Whole,
    check_writable,
    parse_target,
    swarm_options,
    threads_option,
    weights_options,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_IDS_BYTES = 64 << 20


@click.command("logits", short_help="Write a model's logits for given token ids.")
@swarm_options
@click.option(
    "--local", type=DIRECTORY, metavar="DIR", help="A model directory or GGUF file here; needs no network."
)
@click.option("--model", metavar="NAME", help="Which model, where the swarm has several.")
@click.option("--offline", is_flag=True, help="Use what is on this machine, without any network.")
@click.option(
    "--ids", "ids_file", required=True, type=DIRECTORY, metavar="FILE",
    help="Token ids: a JSON list, or numbers between spaces or commas; - reads standard input.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=DIRECTORY, metavar="FILE.npy",
    help="Where the logits go: float32 [positions, vocabulary].",
)  # fmt: skip
@click.option(
    "--greedy", type=Whole(min=0), default=0, metavar="N",
    help="Also print the N likeliest next tokens, each fed back.",
)  # fmt: skip
@weights_options
@threads_option
@asking_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    invite: str | None,
    tracker: str | None,
    token: str | None,
    local: Path | None,
    model: str | None,
    offline: bool,
    ids_file: Path,
    out: Path,
    greedy: int,
    weights: str,
    expert_ram: int | None,
    hedge: str,
    audit: float,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Write a model's logits for given token ids.

    FILE.npy gets the logits at every position; nothing is written unless all of it was computed.
    """
    import numpy as np

    from engine.generate import continued
    from swarm.cli.model import opened
    from swarm.peers.settings import home, load_remembered

    target = parse_target(invite, tracker)
    if local is not None and target is not None:
        raise click.UsageError("Give a swarm or --local DIR, not both.")
    if local is None and target is None and load_remembered(home().settings).swarm is None:
        raise click.UsageError("No swarm is known yet: give --tracker HOST or an invite, or --local DIR.")
    if token is not None and local is not None:
        raise click.UsageError(NO_TOKEN_NEEDED)
    if trace is not None and (local is not None or offline):
        raise click.UsageError(NOBODY_TO_TRACE)
    ids = read_ids(ids_file)
    check_writable(out, "--out")
    asking = Asking(hedge, audit, trace, say_summary, keep=expert_ram is not None)
    with opened(target, token, local, model, weights, expert_ram, offline=offline, asking=asking) as engine:
        beyond = next((number for number in ids if number >= engine.model.vocab_size), None)
        if beyond is not None:
            raise click.ClickException(
                f"Token {beyond} is outside this model's vocabulary of {engine.model.vocab_size:,}."
            )
        room = engine.model.context_length
        if len(ids) + max(greedy - 1, 0) > room:
            more = f" and {greedy:,} more tokens" if greedy else ""
            raise click.ClickException(
                f"{len(ids):,} token ids{more} do not fit this model's context of {room:,}; give fewer."
            )
        logits, tokens = continued(engine.model, engine.experts, ids, greedy)
    save_array(out, logits.astype(np.float32, copy=False))
    if as_json:
        shape = [int(side) for side in logits.shape]
        print(json.dumps({"positions": shape[0], "vocabulary": shape[1], "out": str(out), "greedy": tokens}))
    elif tokens:
        print(" ".join(map(str, tokens)))


def read_ids(path: Path) -> list[int]:
    """Token ids from a file, or from standard input for "-"; a ClickException says what is wrong."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        content = sys.stdin.buffer.read(MAX_IDS_BYTES + 1) if str(path) == "-" else path.read_bytes()
        text = content.decode()
    except UnicodeDecodeError:
        raise click.ClickException(
            f"{name} is not text; give token ids as a JSON list or as numbers."
        ) from None
    if len(content) > MAX_IDS_BYTES:
        raise click.ClickException(f"{name} is larger than {MAX_IDS_BYTES:,} bytes.")
    words = re.split(r"[\s,]+", text.strip().removeprefix("[").removesuffix("]").strip())
    if words == [""]:
        raise click.ClickException(f"{name} holds no token ids.")
    odd = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if odd is not None:
        raise click.ClickException(
            f"{name}: {odd[:40]!r} is not a token id; give a JSON list, or numbers between spaces or commas."
        )
    return [int(word) for word in words]


def save_array(path: Path, array: "npt.NDArray[np.float32]") -> None:
    """Writes a .npy file, whole or not at all."""
    import numpy as np

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.save(file, array)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
