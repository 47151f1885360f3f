"""Expert calls as bytes: what a chatter asks of a donor and what comes back, checked before it is used.

The layout is that of `swarm.wire.messages.experts`. Rows travel in the form the kernels take, so nothing is
lost on the way and nothing is converted twice.
"""

from dataclasses import dataclass

import numpy as np

from engine.arrays import F32, I32, Array, aligned
from engine.kernels import ExpertRows, ExpertShape, Rows
from swarm.errors import SwarmError
from swarm.wire.messages.experts import (
    FEW_OUTPUTS_BYTES,
    MAX_OUTPUTS_BYTES,
    MAX_PAIRS,
    MAX_ROWS_BYTES,
    ExpertOutputs,
    RunExperts,
    RunManyExperts,
)
from swarm.wire.rpc import Buffer

GROUP = 32
PAIR_BYTES = 4
FEW = 64
_ONE_ROW = np.zeros(1, np.intp)
UNSIGNED = ExpertOutputs(bytes(64))
"""What the digest of a reply is taken over, in place of the message that holds the receipt."""


class MalformedCall(SwarmError):
    """The call was refused before any work was done: {reason}."""


class MalformedOutputs(SwarmError):
    """{peer} answered {reason}; its answer was not used."""


@dataclass(frozen=True, slots=True)
class Form:
    """The sizes of what goes to and comes from the experts of a layer."""

    hidden: int
    integer: bool
    """Whether rows are int8 and outputs int16, in groups of 32 with a scale; else both are float32."""

    @classmethod
    def of(cls, shape: ExpertShape) -> "Form":
        """The form of experts of a shape."""
        return cls(shape.hidden, shape.integer)

    @property
    def groups(self) -> int:
        """Scales a row."""
        return -(-self.hidden // GROUP)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on its way to a donor."""
        return self.groups * (GROUP + 4) if self.integer else 4 * self.hidden

    @property
    def output_bytes(self) -> int:
        """Bytes of an expert's output row on its way back."""
        return 2 * self.hidden + 4 * self.groups if self.integer else 4 * self.hidden

    @property
    def most_pairs(self) -> int:
        """Pairs whose outputs fit one reply."""
        return min(MAX_PAIRS, MAX_OUTPUTS_BYTES // self.output_bytes)

    @property
    def most_rows(self) -> int:
        """Rows that fit one request beside the pairs."""
        return (MAX_ROWS_BYTES - PAIR_BYTES * self.most_pairs) // self.row_bytes

    def is_one_call(self, pairs: int, rows: int) -> bool:
        """Whether so many pairs of so many rows fit one call."""
        return pairs <= self.most_pairs and rows <= self.most_rows


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """(expert, row) pairs of one layer and their rows. expert, row: int32 [P]; rows: Rows or float32 [N, D]."""

    layer: int
    expert: I32
    row: I32
    rows: Rows | F32

    def __len__(self) -> int:
        return len(self.expert)

    def part(self, pairs: Array) -> "Work":
        """Some of the pairs, with the same rows."""
        return Work(self.layer, self.expert[pairs], self.row[pairs], self.rows)

    def first(self) -> "Work":
        """The first pair alone, with a copy of its row."""
        at, rows = self.row[:1], self.rows
        row = (
            Rows(rows.q[at], rows.scale[at], rows.sums[at], rows.cols) if isinstance(rows, Rows) else rows[at]
        )
        return Work(self.layer, self.expert[:1], np.zeros(1, np.int32), row)


def pieces(form: Form, work: Work) -> list[Array]:
    """Splits pairs (indices [P]) into calls that keep to the limits, consecutive rows together."""
    pairs = len(work)
    if form.is_one_call(pairs, len(work.rows)):
        return [np.arange(pairs)]
    order = np.argsort(work.row, kind="stable")
    found: list[Array] = []
    start, rows, last = 0, 0, -1
    for place, row in enumerate(work.row[order].tolist()):
        fresh = row != last
        if place - start == form.most_pairs or (fresh and rows == form.most_rows):
            found.append(order[start:place])
            start, rows, fresh = place, 0, True
        rows += fresh
        last = row
    found.append(order[start:])
    return found


def encode_call(form: Form, bank: int, work: Work, pairs: Array) -> tuple[RunExperts, bytes]:
    """The request for some pairs of a piece of work; each of their rows is sent once."""
    count, rows = len(pairs), work.rows
    if len(rows) == 1:
        used, row = _ONE_ROW, np.zeros(count, "<u2")
    else:
        used, row = np.unique(work.row[pairs], return_inverse=True)
    parts = [work.expert[pairs].astype("<u2").tobytes(), row.astype("<u2").tobytes()]
    if isinstance(rows, Rows):
        everything = len(used) == len(rows)
        parts.append((rows.q if everything else rows.q[used]).tobytes())
        parts.append((rows.scale if everything else rows.scale[used]).tobytes())
    else:
        parts.append(np.ascontiguousarray(rows[used]).tobytes())
    kind = RunExperts if count * form.output_bytes <= FEW_OUTPUTS_BYTES else RunManyExperts
    return kind(bank, work.layer, count), b"".join(parts)


def decode_call(form: Form, experts: int, message: RunExperts, payload: Buffer) -> Work:
    """The work a request asks for. MalformedCall for lengths, numbers or values that cannot be."""
    count = message.pairs
    if count > form.most_pairs or count * form.output_bytes > type(message).reply_payload:
        raise MalformedCall(reason=f"{count} pairs are more than one reply can carry")
    rows_bytes = len(payload) - PAIR_BYTES * count
    number, rest = divmod(rows_bytes, form.row_bytes)
    if rows_bytes < 0 or rest or number > max(count, 1):
        raise MalformedCall(reason=f"{len(payload)} bytes are not {count} pairs and rows of {form.hidden}")
    expert, row = np.frombuffer(payload, "<u2", 2 * count).astype(np.int32).reshape(2, count)
    if (largest := _largest(expert)) >= experts:
        raise MalformedCall(reason=f"expert {largest} was asked for; the layer has {experts}")
    if (largest := _largest(row)) >= number:
        raise MalformedCall(reason=f"row {largest} was named; {number} were sent")
    return Work(message.layer, expert, row, _decode_rows(form, payload, PAIR_BYTES * count, number))


def _largest(numbers: Array) -> int:
    """-1 when there are none. Of a token's few pairs Python finds it in a fraction of the time."""
    return max(numbers.tolist(), default=-1) if len(numbers) <= FEW else int(numbers.max())


def _decode_rows(form: Form, payload: Buffer, offset: int, number: int) -> Rows | F32:
    if not form.integer:
        plain = aligned((number, form.hidden), np.float32)
        plain.reshape(-1)[:] = np.frombuffer(payload, "<f4", plain.size, offset)
        if not np.isfinite(plain).all():
            raise MalformedCall(reason="a row holds a value that is no finite number")
        return plain
    padded = form.groups * GROUP
    q, scale = aligned((number, padded), np.int8), aligned((number, form.groups), np.float32)
    q.reshape(-1)[:] = np.frombuffer(payload, np.int8, q.size, offset)
    scale.reshape(-1)[:] = np.frombuffer(payload, "<f4", scale.size, offset + q.size)
    try:
        return Rows.of(q, scale, form.hidden)
    except ValueError as error:
        raise MalformedCall(reason=error) from None


def encode_outputs(outputs: ExpertRows) -> bytes:
    """The payload of a reply."""
    return outputs.values.tobytes() + outputs.scale.tobytes()


def decode_outputs(form: Form, count: int, payload: Buffer, peer: str) -> ExpertRows:
    """The outputs of `count` pairs in a reply. MalformedOutputs when it has another length or no numbers."""
    if len(payload) != count * form.output_bytes:
        raise MalformedOutputs(peer=peer, reason=f"{len(payload)} bytes for {count} outputs")
    kind = "<i2" if form.integer else "<f4"
    values = np.frombuffer(payload, kind, count * form.hidden).reshape(count, form.hidden)
    rest = len(payload) - values.nbytes
    scale = np.frombuffer(payload, "<f4", rest // 4, values.nbytes).reshape(count, -1 if count else 0)
    if not np.isfinite(scale if form.integer else values).all():
        raise MalformedOutputs(peer=peer, reason="with values that are no finite numbers")
    return ExpertRows(values, scale)
