"""Exact int32 dot products of 16 rows of packed weights with int8 activations, written for each instruction
set.

A step is 4 inputs of 16 rows: 64 bytes, row after row, cut into pieces as wide as a register. A writer turns
the packed weights of a group into steps once, and then adds up steps for each token. What a packed byte or
nibble u stands for is u - bias (128 for q8, 8 for q4 and int4, 12 for doubled E2M1 values); unsigned writers
start a group's sum at -bias · sum(x in the group) to undo that exactly, signed ones subtract the bias from
the weights. The sum of x comes as two of 16 bits in an i32: that of the first two of every 4 inputs in its lower
half, that of the others in its upper.
"""

from abc import ABC, abstractmethod
from typing import Any

from engine.kernels import ir as w
from engine.kernels.ir import (
    I1,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Value,
    call,
    constant,
    load,
    offset,
    splat,
    vector,
)

STEPS = 8  # steps of 4 inputs in a group of 32
BIAS = {"q8": 128, "q4": 8, "int4": 8, "mxfp4": 12}
DOUBLED = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]

Piece = Any
Steps = list[list[Piece]]  # [step][piece]


def doubled_e2m1(builder: Builder, codes: Value) -> Value:
    """i8 lanes of E2M1 codes 0 … 15 as twice their values."""
    b, kind = builder, codes.type
    size = base = b.and_(codes, constant(kind, 7))
    for above, times in ((4, 1), (6, 2)):  # 0 1 2 3 4 6 8 12 = m + max(0, m - 4) + 2 max(0, m - 6)
        more = call(b, f"llvm.usub.sat.{w.suffix(kind)}", kind, [base, constant(kind, above)])
        for _ in range(times):
            size = b.add(size, more)
    return b.select(b.icmp_unsigned(">", codes, constant(kind, 7)), b.neg(size), size)


class Writer(ABC):
    """Unsigned weights times signed activations; subclasses say how one piece is multiplied and looked up."""

    signed = False  # whether steps hold u - bias instead of u
    chains = 1  # sums that run side by side, for a single token to keep the multipliers busy

    def __init__(self, builder: Builder, kind: str, lanes: int) -> None:
        self.b, self.kind, self.lanes, self.pieces = builder, kind, lanes, 16 // lanes
        self.bytes = vector(I8, 4 * lanes)
        self.ints = vector(I32, lanes)

    # weights

    def steps(self, group: Value) -> Steps:
        """The 8 steps of the group whose packed weights start at `group` (an i8 pointer; best 64-byte
        aligned).
        """
        if self.kind == "q8":
            return [self.steps_at(offset(self.b, group, 64 * step))[0] for step in range(STEPS)]
        halves = [self.steps_at(offset(self.b, group, 64 * half)) for half in range(STEPS // 2)]
        return [low for low, _ in halves] + [high for _, high in halves]

    def steps_at(self, line: Value) -> Steps:
        """What the 64 bytes at `line` hold: a step of q8, or a step of 4 bits and the one 4 steps on."""
        packed = [
            load(self.b, offset(self.b, line, 4 * self.lanes * piece), self.bytes)
            for piece in range(self.pieces)
        ]
        if self.kind == "q8":
            return [[self.byte(value) for value in packed]]
        low = [self.nibble(self.b.and_(value, constant(self.bytes, 15))) for value in packed]
        return [low, [self.nibble(self._upper(value)) for value in packed]]

    def _upper(self, value: Value) -> Value:
        wide = vector(I16, 2 * self.lanes)
        shifted = self.b.lshr(self.b.bitcast(value, wide), constant(wide, 4))
        return self.b.and_(self.b.bitcast(shifted, self.bytes), constant(self.bytes, 15))

    def byte(self, value: Value) -> Piece:
        """A step of q8 from its offset bytes."""
        return self.b.xor(value, constant(self.bytes, -128)) if self.signed else value

    def nibble(self, value: Value) -> Piece:
        """A step of a 4-bit format from its codes 0 … 15."""
        if self.kind == "mxfp4":
            return self.look_up(value, DOUBLED if self.signed else [v + BIAS["mxfp4"] for v in DOUBLED])
        return self.b.sub(value, constant(self.bytes, 8)) if self.signed else value

    def look_up(self, codes: Value, table: list[int]) -> Value:
        """E2M1 codes to doubled values (plus the bias, when unsigned), by arithmetic that every CPU has."""
        return self.b.add(doubled_e2m1(self.b, codes), constant(self.bytes, table[0]))

    # products

    def start(self, group_sum: Value) -> list[Value]:
        """The sums of a group before its first step; `group_sum` is the i32 that holds both sums of the token's
        activations.
        """
        if self.signed:
            return [constant(self.ints, 0)] * self.pieces
        return [self.pairs(self.halves(group_sum), -BIAS[self.kind])] * self.pieces

    def halves(self, group_sum: Value) -> Value:
        """Both sums of a group in every two neighbours of a register of i16."""
        return self.b.bitcast(splat(self.b, group_sum, self.lanes), vector(I16, 2 * self.lanes))

    def pairs(self, words: Value, factor: int) -> Value:
        """`factor` · (a + b) for every two neighbours a, b of a register of i16, as i32 (x86 only)."""
        name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[self.lanes]
        return call(self.b, f"llvm.x86.{name}", self.ints, [words, constant(words.type, factor)])

    def groups(self, group: Value, xs: list[Value], group_sums: list[Value]) -> list[list[Value]]:
        """`group` for each of some tokens, with the weights at `group`."""
        steps = self.steps(group)
        return [self.group(steps, x, group_sum) for x, group_sum in zip(xs, group_sums, strict=True)]

    @abstractmethod
    def group(self, steps: Steps, x: Value, group_sum: Value) -> list[Value]:
        """int32 sums of one token for one group, a piece a register; `x` points to its 32 int8
        activations.
        """

    def broadcast(self, four: Value) -> Any:
        """4 activations (an i32) in the form that products take."""
        return self.b.bitcast(splat(self.b, four, self.lanes), self.bytes)


class DotWriter(Writer):
    """Step by step: each adds the dot products of four weights and activations to its lanes."""

    def group(self, steps: Steps, x: Value, group_sum: Value) -> list[Value]:
        none = [constant(self.ints, 0)] * self.pieces
        chains = [self.start(group_sum), *([none] * (self.chains - 1))]
        for step in range(STEPS):
            four = self.broadcast(load(self.b, offset(self.b, x, 4 * step), I32, 4))
            chain, pieces = step % self.chains, range(self.pieces)
            chains[chain] = [self.dot(chains[chain][p], steps[step][p], four) for p in pieces]
        while len(chains) > 1:
            one, two = chains.pop(), chains.pop(0)
            chains.append([self.b.add(a, b) for a, b in zip(one, two, strict=True)])
        return chains[0]

    @abstractmethod
    def dot(self, total: Value, piece: Piece, x: Any) -> Value:
        """total + the dot products of 4, one a lane."""


class Portable(DotWriter):
    """Plain vector arithmetic."""

    signed = True

    def broadcast(self, four: Value) -> Any:
        spread = splat(self.b, four, self.lanes)
        return [self._byte_of(spread, index) for index in range(4)]

    def _byte_of(self, value: Value, index: int) -> Value:
        left = self.b.shl(value, constant(self.ints, 24 - 8 * index))
        return self.b.ashr(left, constant(self.ints, 24))

    def dot(self, total: Value, piece: Piece, x: Any) -> Value:
        wide = self.b.bitcast(piece, self.ints)
        for index in range(4):
            total = self.b.add(total, self.b.mul(self._byte_of(wide, index), x[index]))
        return total


class SSE2(DotWriter):
    """x86-64 without AVX2: 16-bit multiplications of the even and the odd bytes (pmaddwd)."""

    def byte(self, value: Value) -> Piece:
        return self._split(value)

    def nibble(self, value: Value) -> Piece:
        return self._split(super().nibble(value))

    def _split(self, value: Value) -> Piece:
        words = vector(I16, 8)
        value = self.b.bitcast(value, words)
        return self.b.and_(value, constant(words, 255)), self.b.lshr(value, constant(words, 8))

    def broadcast(self, four: Value) -> Any:
        words = vector(I16, 8)
        spread = self.b.bitcast(splat(self.b, four, 4), words)
        even = self.b.ashr(self.b.shl(spread, constant(words, 8)), constant(words, 8))
        return even, self.b.ashr(spread, constant(words, 8))

    def dot(self, total: Value, piece: Piece, x: Any) -> Value:
        for weights, activations in zip(piece, x, strict=True):
            total = self.b.add(
                total, call(self.b, "llvm.x86.sse2.pmadd.wd", self.ints, [weights, activations])
            )
        return total


class X86Table(Writer):
    """x86 with a byte shuffle as wide as the register."""

    def look_up(self, codes: Value, table: list[int]) -> Value:
        width = 4 * self.lanes
        name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}[width]
        return call(self.b, name, self.bytes, [constant(self.bytes, table * (width // 16)), codes])


class VNNI(X86Table, DotWriter):
    """vpdpbusd, on 512 bits (AVX-512 VNNI) or 256 (AVX-VNNI)."""

    def dot(self, total: Value, piece: Piece, x: Any) -> Value:
        # Declared with vectors of i32, as all LLVM versions understand it (newer ones turn them into bytes).
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return call(
            self.b, name, self.ints, [total, self.b.bitcast(piece, self.ints), self.b.bitcast(x, self.ints)]
        )


class AVX2(X86Table):
    """vpmaddubsw on 256 bits, whose 16-bit sums cannot overflow here.

    q8: |w| times x with the sign of w, at most 2 · 128 · 127 in a lane. 4-bit: u times x, summed in 16 bits over all
    steps of a group from -bias · sum(x) on, which is at most 16 · 12 · 127, also on the way.
    """

    def byte(self, value: Value) -> Piece:
        signed = self.b.xor(value, constant(self.bytes, -128))
        return call(self.b, "llvm.abs.v32i8", self.bytes, [signed, constant(I1, 0)]), signed

    def start(self, group_sum: Value) -> list[Value]:
        if self.kind == "q8":
            return [constant(self.ints, 0)] * self.pieces
        both = self.halves(group_sum)
        return [self.b.mul(both, constant(both.type, -BIAS[self.kind]))] * self.pieces

    def group(self, steps: Steps, x: Value, group_sum: Value) -> list[Value]:
        places = [(step, offset(self.b, x, 4 * number)) for number, step in enumerate(steps)]
        return self._ended(self._plus(self.start(group_sum), places))

    def groups(self, group: Value, xs: list[Value], group_sums: list[Value]) -> list[list[Value]]:
        """Several tokens take the steps that share 64 bytes, then the next: so the 16 registers hold their sums and
        these weights. In straight code the compiler puts off products and keeps their factors on the stack.
        """
        if len(xs) == 1:
            return super().groups(group, xs, group_sums)
        b = self.b
        kept = [[w.variable(b, value) for value in self.start(group_sum)] for group_sum in group_sums]
        lines = STEPS if self.kind == "q8" else STEPS // 2
        with w.cgutils.for_range(b, w.unseen(b, lines), intp=I64) as loop:
            taken = self.steps_at(offset(b, group, b.mul(loop.index, constant(I64, 64))))
            for x, slots in zip(xs, kept, strict=True):
                at = offset(b, x, b.mul(loop.index, constant(I64, 4)))
                places = [(step, offset(b, at, 4 * lines * n)) for n, step in enumerate(taken)]
                after = self._plus([b.load(slot) for slot in slots], places)
                for slot, value in zip(slots, after, strict=True):
                    b.store(value, slot)
        return [self._ended([b.load(slot) for slot in slots]) for slots in kept]

    def _plus(self, totals: list[Value], steps: list[tuple[list[Piece], Value]]) -> list[Value]:
        """Totals, a piece a register, plus the products of steps with the 4 activations where the pointer of each
        says; in i32 for q8, else in i16.
        """
        name, words = "llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16)
        for step, x in steps:
            four, more = self.broadcast(load(self.b, x, I32, 4)), []
            for piece in step:
                if self.kind == "q8":
                    weights, signed = piece
                    activations = call(self.b, "llvm.x86.avx2.psign.b", self.bytes, [four, signed])
                    more.append(self.pairs(call(self.b, name, words, [weights, activations]), 1))
                else:
                    more.append(call(self.b, name, words, [piece, four]))
            totals = [self.b.add(total, value) for total, value in zip(totals, more, strict=True)]
        return totals

    def _ended(self, totals: list[Value]) -> list[Value]:
        """The sums of a group, i32."""
        return totals if self.kind == "q8" else [self.pairs(total, 1) for total in totals]


class Neon(DotWriter):
    """sdot of the Arm dot product extension."""

    signed = True

    def look_up(self, codes: Value, table: list[int]) -> Value:
        return call(self.b, "llvm.aarch64.neon.tbl1.v16i8", self.bytes, [constant(self.bytes, table), codes])

    def dot(self, total: Value, piece: Piece, x: Any) -> Value:
        return call(self.b, "llvm.aarch64.neon.sdot.v4i32.v16i8", self.ints, [total, piece, x])


WRITERS: dict[str, type[Writer]] = {
    "avx512vnni": VNNI, "avxvnni": VNNI, "avx2": AVX2, "sse2": SSE2, "neon": Neon, "portable": Portable,
}  # fmt: skip
