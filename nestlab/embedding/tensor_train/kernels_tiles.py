"""Tiles of small matrix products for numba kernels, written as LLVM vectors so that their sums stay in registers.

numba vectorises inner loops but keeps no block of sums in registers, which is what makes a product fast (Goto and van
de Geijn, "Anatomy of high-performance matrix multiplication", 2008). A tile is a few rows and a few vectors of columns
of a product: a step loads the vectors of B once and one number of A a row. A vector is 64 bytes with AVX-512, else 32.

Arrays are one-dimensional, contiguous and of one float type; places and distances are counted in elements.
"""

from __future__ import annotations

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from nestlab.jit import jit

_SPINS = 2000  # some microseconds; then the processor is left to others, who may be who is waited for
_yield = types.ExternalFunction("sched_yield", types.int32())
VECTOR_BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32


def lane_count(itemsize: int) -> int:
    """Elements of a vector."""
    return VECTOR_BYTES // itemsize


class _Coder:
    """What the code of every tile needs: pointers into arrays, vectors, and sums that LLVM turns into registers."""

    def __init__(self, context, builder, signature, args) -> None:
        self.context, self.builder, self.types, self.args = context, builder, signature.args, args
        self.itemsize = 4 if signature.args[0].dtype == types.float32 else 8
        self.count = lane_count(self.itemsize)
        self.vector = ir.VectorType(context.get_data_type(signature.args[0].dtype), self.count)
        self.long = ir.IntType(64)

    def array(self, number: int):
        return make_array(self.types[number])(self.context, self.builder, self.args[number]).data

    def integer(self, number: int):
        return self.context.cast(self.builder, self.args[number], self.types[number], types.intp)

    def place(self, number: int):
        """Of an array argument and the place that follows it."""
        return self.at(self.array(number), self.integer(number + 1))

    def constant(self, value: int):
        return ir.Constant(self.long, value)

    def at(self, pointer, *offsets):
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset])
        return pointer

    def apart(self, pointer, distance, count: int) -> list:
        """`count` pointers at that distance."""
        return [self.at(pointer, self.builder.mul(self.constant(i), distance)) for i in range(count)]

    def load(self, pointer):
        """A vector; arrays need not be aligned."""
        return self.builder.load(self.builder.bitcast(pointer, self.vector.as_pointer()), align=self.itemsize)

    def store(self, vector, pointer) -> None:
        self.builder.store(vector, self.builder.bitcast(pointer, vector.type.as_pointer()), align=self.itemsize)

    def spread(self, pointer):
        """The number there in every lane."""
        return self.every(self.builder.load(pointer))

    def every(self, number):
        none = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(none, number, ir.Constant(ir.IntType(32), 0))
        return self.shuffle(first, none, [0] * self.count)

    def shuffle(self, left, right, lanes: list[int]):
        """The lanes named, of left and then right."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
        return self.builder.shuffle_vector(left, right, mask)

    def interleave(self, vectors: list):
        """One long vector: lane 0 of each, lane 1 of each …"""
        n, whole = self.count, vectors[0]
        for i, vector in enumerate(vectors[1:], start=1):
            wide = self.shuffle(vector, vector, [j % n for j in range(i * n)])
            whole = self.shuffle(whole, wide, list(range((i + 1) * n)))
        return self.shuffle(whole, whole, [c * n + j for j in range(n) for c in range(len(vectors))])

    def turned(self, rows: list) -> list:
        """The transpose of as many vectors as a vector has lanes: pairs at distance 1, 2, 4 … change places."""
        n, step = self.count, 1
        while step < n:
            low = [n + j - step if j & step else j for j in range(n)]
            high = [n + j if j & step else j + step for j in range(n)]
            rows = [self.shuffle(rows[i & ~step], rows[i | step], high if i & step else low) for i in range(n)]
            step *= 2
        return rows

    def zero(self):
        return ir.Constant(self.vector, None)

    def sums(self, rows: int, columns: int) -> list[list]:
        """[rows][columns] variables, vectors of zeros."""
        made = [[cgutils.alloca_once(self.builder, self.vector) for _ in range(columns)] for _ in range(rows)]
        for row in made:
            for variable in row:
                self.builder.store(self.zero(), variable)
        return made

    def fused(self, left, right, total):
        """left · right + total, in one instruction where the processor has it."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        name = f"llvm.fmuladd.v{self.count}f{8 * self.itemsize}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [left, right, total])

    def add_product(self, variable, left, right) -> None:
        self.builder.store(self.fused(left, right, self.builder.load(variable)), variable)

    def multiply(self, sums, a_rows, b) -> None:
        """One step of a product: a pointer a row of A; to the row of B."""
        vectors = [self.load(pointer) for pointer in self.apart(b, self.constant(self.count), len(sums[0]))]
        for row, pointer in zip(sums, a_rows, strict=True):
            left = self.spread(pointer)
            for variable, vector in zip(row, vectors, strict=True):
                self.add_product(variable, left, vector)

    def write(self, sums, c, c_row, add: bool) -> None:
        """C = sums, or C += sums."""
        for row, start in zip(sums, self.apart(c, c_row, len(sums)), strict=True):
            for variable, place in zip(row, self.apart(start, self.constant(self.count), len(row)), strict=True):
                value = self.builder.load(variable)
                self.store(self.builder.fadd(self.load(place), value) if add else value, place)

    def variants(self, choices, *given) -> None:
        """Code for each choice, run where the integers given are those of the choice."""
        for choice, emit in choices:
            tests = [
                self.builder.icmp_signed("==", value, self.constant(want))
                for value, want in zip(given, choice, strict=True)
            ]
            every = tests[0]
            for test in tests[1:]:
                every = self.builder.and_(every, test)
            with self.builder.if_then(every):
                emit(*choice)


def _tile(add: bool):
    """C [rows, vectors] = or += A [rows, depth] · B [depth, vectors], of 4 or 1 rows and 4, 2 or 1 vectors.

    Called with (a, place, distance of rows, of steps; b, place, distance of steps; c, place, distance of rows; depth;
    rows, vectors).
    """

    @intrinsic
    def tile(typing_context, a, a_at, a_row, a_step, b, b_at, b_step, c, c_at, c_row, depth, rows, vectors):
        signature = types.void(a, a_at, a_row, a_step, b, b_at, b_step, c, c_at, c_row, depth, rows, vectors)

        def codegen(context, builder, signature, args):
            code = _Coder(context, builder, signature, args)
            a, b, c = code.place(0), code.place(4), code.place(7)
            a_row, a_step, b_step, c_row, depth = map(code.integer, (2, 3, 6, 9, 10))

            def emit(rows, vectors):
                lefts, sums = code.apart(a, a_row, rows), code.sums(rows, vectors)
                with cgutils.for_range(builder, depth) as loop:
                    step = builder.mul(loop.index, a_step)
                    right = code.at(b, builder.mul(loop.index, b_step))
                    code.multiply(sums, [code.at(left, step) for left in lefts], right)
                code.write(sums, c, c_row, add)

            code.variants([((r, v), emit) for r in (4, 1) for v in (4, 2, 1)], code.integer(11), code.integer(12))
            return context.get_dummy_value()

        return signature, codegen

    return tile


tile, tile_add = _tile(False), _tile(True)


@intrinsic
def tile_sum(
    typing_context, a, a_at, a_row, a_step, items, index, first, end, a_next,
    b, b_at, b_step, b_next, c, c_at, c_row, depth, rows, vectors,
):  # fmt: skip
    """As `tile_add`, of the sum of products i from `first` to `end`.

    A_i begins at index[items[i]] · a_next, B_i at (i − first) · b_next.
    """
    left = (a, a_at, a_row, a_step, items, index, first, end, a_next)
    signature = types.void(*left, b, b_at, b_step, b_next, c, c_at, c_row, depth, rows, vectors)

    def codegen(context, builder, signature, args):
        code = _Coder(context, builder, signature, args)
        a, items, index, b, c = code.place(0), code.array(4), code.array(5), code.place(9), code.place(13)
        a_row, a_step, first, end, a_next = map(code.integer, (2, 3, 6, 7, 8))
        b_step, b_next, c_row, depth = map(code.integer, (11, 12, 15, 16))

        def element(array, place):
            return builder.sext(builder.load(code.at(array, place)), code.long)

        def emit(rows, vectors):
            sums = code.sums(rows, vectors)
            with cgutils.for_range(builder, builder.sub(end, first)) as outer:
                item = element(index, element(items, builder.add(first, outer.index)))
                lefts = code.apart(code.at(a, builder.mul(item, a_next)), a_row, rows)
                right = code.at(b, builder.mul(outer.index, b_next))
                with cgutils.for_range(builder, depth) as loop:
                    step = builder.mul(loop.index, a_step)
                    at = code.at(right, builder.mul(loop.index, b_step))
                    code.multiply(sums, [code.at(left, step) for left in lefts], at)
            code.write(sums, c, c_row, True)

        code.variants([((r, v), emit) for r in (4, 1) for v in (4, 2, 1)], code.integer(17), code.integer(18))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def tile_last(typing_context, a, a_at, a_step, b, b_at, b_step, c, c_at, depth, columns):
    """C[j, i] = Σ_k A[k, i] · B[k, j], j a vector, i up to 4 columns, stored without gaps.

    Called with (a, place, distance of k; b, place, distance of k; c, place; depth; columns).
    """
    signature = types.void(a, a_at, a_step, b, b_at, b_step, c, c_at, depth, columns)

    def codegen(context, builder, signature, args):
        code = _Coder(context, builder, signature, args)
        a, b, c = code.place(0), code.place(3), code.place(6)
        a_step, b_step, depth = map(code.integer, (2, 5, 8))

        def emit(columns):
            both = code.sums(columns, 1), code.sums(columns, 1)  # twice as many sums at once: one waits for itself

            def step(k, sums):
                lefts = code.apart(code.at(a, builder.mul(k, a_step)), code.constant(1), columns)
                code.multiply(sums, lefts, code.at(b, builder.mul(k, b_step)))

            with cgutils.for_range(builder, builder.lshr(depth, code.constant(1))) as loop:
                for i, sums in enumerate(both):
                    step(builder.add(builder.shl(loop.index, code.constant(1)), code.constant(i)), sums)
            with builder.if_then(builder.trunc(depth, ir.IntType(1))):
                step(builder.sub(depth, code.constant(1)), both[0])
            pairs = zip(*both, strict=True)
            code.store(code.interleave([builder.fadd(*(builder.load(each) for (each,) in pair)) for pair in pairs]), c)

        code.variants([((i,), emit) for i in (4, 3, 2, 1)], code.integer(9))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def tile_back(typing_context, buffer, p_at, dp_at, dr_at, g_at, dg_at, row, dr_row, depth, columns, vectors, fresh):
    """Both gradients of a last product, of `vectors` (2 or 1) vectors of ranks and `columns` (4 or 1) of its columns.

    With P and dP [depth, ranks], dR [depth, columns], Gᵀ and dGᵀ [columns, ranks], all in one buffer:
    dP[j, :] += Σ_c dR[j, c] · Gᵀ[c, :] (= if `fresh` is 1) and dGᵀ[c, :] += Σ_j dR[j, c] · P[j, :].
    Called with (buffer; places of P, dP, dR, Gᵀ, dGᵀ; distance of rows, of dR's rows; depth; columns, vectors, fresh).
    """
    signature = types.void(buffer, p_at, dp_at, dr_at, g_at, dg_at, row, dr_row, depth, columns, vectors, fresh)

    def codegen(context, builder, signature, args):
        code = _Coder(context, builder, signature, args)
        p, dp, dr, g, dg = (code.at(code.array(0), code.integer(n)) for n in range(1, 6))
        row, dr_row, depth = map(code.integer, (6, 7, 8))

        def emit(columns, vectors, fresh):
            def across(pointer):
                return code.apart(pointer, code.constant(code.count), vectors)

            right = [[code.load(at) for at in across(start)] for start in code.apart(g, row, columns)]
            sums = code.sums(columns, vectors)
            with cgutils.for_range(builder, depth) as loop:
                step = builder.mul(loop.index, row)
                left = code.apart(code.at(dr, builder.mul(loop.index, dr_row)), code.constant(1), columns)
                ahead, places = [code.load(at) for at in across(code.at(p, step))], across(code.at(dp, step))
                totals = [code.zero() if fresh else code.load(place) for place in places]
                for c in range(columns):
                    number = code.spread(left[c])
                    for v in range(vectors):
                        totals[v] = code.fused(number, right[c][v], totals[v])
                        code.add_product(sums[c][v], number, ahead[v])
                for total, place in zip(totals, places, strict=True):
                    code.store(total, place)
            code.write(sums, dg, row, True)

        choices = [((c, v, f), emit) for c in (4, 1) for v in (2, 1) for f in (1, 0)]
        code.variants(choices, *map(code.integer, (9, 10, 11)))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def turn(typing_context, a, a_at, a_row, valid, b, b_at, b_row):
    """B [lanes, lanes] = Aᵀ, of whose rows `valid` exist (the last of them stands for the others)."""
    signature = types.void(a, a_at, a_row, valid, b, b_at, b_row)

    def codegen(context, builder, signature, args):
        code = _Coder(context, builder, signature, args)
        a_row, last, b_row = code.integer(2), builder.sub(code.integer(3), code.constant(1)), code.integer(6)
        rows = []
        for i in map(code.constant, range(code.count)):
            there = builder.select(builder.icmp_signed("<", i, last), i, last)
            rows.append(code.load(code.at(code.place(0), builder.mul(there, a_row))))
        for vector, place in zip(code.turned(rows), code.apart(code.place(4), b_row, code.count), strict=True):
            code.store(vector, place)
        return context.get_dummy_value()

    return signature, codegen


def _scale(add: bool):
    """to[place …] [count] = or += weight · source[place …]: called with (to, place, source, place, count, weight)."""

    @intrinsic
    def scale(typing_context, to, to_at, source, source_at, count, weight):
        signature = types.void(to, to_at, source, source_at, count, to.dtype)

        def codegen(context, builder, signature, args):
            code = _Coder(context, builder, signature, args)
            to, source, count = code.place(0), code.place(2), code.integer(4)
            whole = builder.udiv(count, code.constant(code.count))

            def sum_of(value, weight, place, load):
                product = builder.fmul(weight, value)
                return builder.fadd(load(place), product) if add else product

            weights = code.every(args[5])
            with cgutils.for_range(builder, whole) as loop:
                at = builder.mul(loop.index, code.constant(code.count))
                place = code.at(to, at)
                code.store(sum_of(code.load(code.at(source, at)), weights, place, code.load), place)
            done = builder.mul(whole, code.constant(code.count))
            with cgutils.for_range(builder, builder.sub(count, done)) as loop:
                at = builder.add(done, loop.index)
                place = code.at(to, at)
                builder.store(sum_of(builder.load(code.at(source, at)), args[5], place, builder.load), place)
            return context.get_dummy_value()

        return signature, codegen

    return scale


scale, scale_add = _scale(False), _scale(True)


@intrinsic
def _arrive(typing_context, counter):
    """counter[0] += 1 for all threads to see, and everything written before."""
    signature = types.void(counter)

    def codegen(context, builder, signature, args):
        data = make_array(signature.args[0])(context, builder, args[0]).data
        builder.atomic_rmw("add", data, ir.Constant(ir.IntType(64), 1), "acq_rel")
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _arrived(typing_context, counter):
    """counter[0], as the threads left it, and everything they wrote before."""
    signature = types.int64(counter)

    def codegen(context, builder, signature, args):
        data = make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "acquire", 8)

    return signature, codegen


@jit
def meet(counter, total):
    """Waits until threads have come here `total` times, this one included; counter [1] int64, zero at first."""
    _arrive(counter)
    spins = 0
    while _arrived(counter) < total:
        spins += 1
        if spins > _SPINS:
            _yield()


@intrinsic
def fetch(typing_context, array, at, count):
    """Asks for `count` elements from `at` on, into the second cache: they are needed soon, but not at once."""
    signature = types.void(array, at, count)

    def codegen(context, builder, signature, args):
        code = _Coder(context, builder, signature, args)
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        line = code.constant(64 // code.itemsize)
        lines = builder.sdiv(builder.sub(builder.add(code.integer(2), line), code.constant(1)), line)
        start, settings = code.place(0), [ir.Constant(i32, value) for value in (0, 2, 1)]
        with cgutils.for_range(builder, lines) as loop:
            pointer = builder.bitcast(code.at(start, builder.mul(loop.index, line)), byte)
            builder.call(function, [pointer, *settings])
        return context.get_dummy_value()

    return signature, codegen
