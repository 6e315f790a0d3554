"""A prefetch instruction for numba kernels. It has no effect on any value."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import get_item_pointer
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


@intrinsic
def prefetch(typing_context, array, index):
    """Asks for the cache line of element `index` of a one-dimensional contiguous array, for reading and writing."""
    signature = types.void(array, index)

    def codegen(context, builder, signature, args):
        array_type, index_type = signature.args
        view = make_array(array_type)(context, builder, args[0])
        at = context.cast(builder, args[1], index_type, types.intp)
        pointer = get_item_pointer(context, builder, array_type, view, [at], wraparound=False)
        byte = ir.IntType(8).as_pointer()
        i32 = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", (byte,), ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        )
        for_write, keep, data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
        builder.call(function, [builder.bitcast(pointer, byte), for_write, keep, data])
        return context.get_dummy_value()

    return signature, codegen
