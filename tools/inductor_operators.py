#!/usr/bin/env python3
"""The operators that AOTInductor does not take (INDUCTOR_REFUSE in src/plan/ops.def) against the installed torch.

    python tools/inductor_operators.py            # operators that inductor takes in no way and that are not listed

After names were added anywhere in the lists, tools/operators.py --write sorts and wraps them.

An operator is taken if torch takes it apart, inductor has code for it, or a C function of libtorch calls it. Those
that torch takes apart into ones on the list are not found here, but by compiling them."""

from __future__ import annotations

import re
import sys

import operators

# Never nodes of a plan that can be compiled: of training, of other devices and layouts, random, or copies that
# functionalization makes.
_APART = re.compile(
    r"backward|_jvp|foreach|fused|_amp|quant|^int_repr$|^q_|sparse|coalesce|_to_dense|nested|jagged|padded|indices|values"
    r"|csr|csc|bsr|bsc|hspmm|mkldnn|cudnn|miopen|mps|cslt|philox|rand|bernoulli|binomial|poisson|dirichlet|multinomial"
    r"|_standard_gamma|_copy$|_copy_from|dual|primal|_test|^set$|_resize_output|sym_constrain|assert|_dep_token|pin_memory"
    r"|_index_put_impl|_new_zeros_with_same|^_conj$|^_aminmax$"
)


def not_taken() -> list[str]:
    """Functional operators of this torch that inductor takes in no way: "linalg_qr", or "nanmedian.dim" where it takes
    other overloads."""
    import torch
    from torch._inductor import decomposition, lowering
    from torchgen.aoti.fallback_ops import inductor_fallback_ops

    apart, implicit = decomposition.select_decomp_table(), torch._C.DispatchKey.CompositeImplicitAutograd
    taken: dict[str, dict[str, bool]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), name, None), overload or "default", None)
        if space != "aten" or op is None or op._schema.is_mutable or "Tensor" not in str(op._schema.returns):
            continue
        taken.setdefault(name, {})[overload or "default"] = (
            op in apart
            or op.has_kernel_for_dispatch_key(implicit)
            or implicit in op.py_kernels
            or (op in lowering.lowerings and op not in lowering.fallbacks)
            or str(op) in inductor_fallback_ops
        )
    out = []
    for name, overloads in taken.items():
        if not any(overloads.values()):
            out.append(name)
        else:
            out += [f"{name}.{overload}" for overload, yes in overloads.items() if not yes]
    return sorted(n for n in out if not _APART.search(n.partition(".")[0]))


def unknown() -> list[str]:
    known = operators.reasons("INDUCTOR_REFUSE")
    return [name for name in not_taken() if name not in known and name.partition(".")[0] not in known]


def main() -> int:
    import torch

    missing = unknown()
    print("\n".join(missing))
    print(f"torch {torch.__version__}: {len(missing)} operators are not on the list", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
