"""Teacher-forced decoding on a GPU: few launches per step, weight gradients after the loop.

One product of the state serves everything that reads it. Its columns, and those of its gradient:

    U t (n, reset_after only) | q = W_a t (n) | S_t = S t (g d, padded) | R t, G t (2n)

The gradient has n more at the end: the candidate's pre-activation. Its last 3n columns are then
the gradient of the cell's inputs and of Cx s, and all but the last n that of the product, so
every gradient of a weight is one product over all steps.

Buffers are [I, B, .]: a step is a contiguous slice, and all steps together one tall matrix.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from covnmt.kernels import reference
from covnmt.kernels.tensors import CoverageKernel, DecoderSteps, DecoderWeights, EncodedSource
from covnmt.kernels.triton import attention as triton_attention
from covnmt.kernels.triton import coverage as triton_coverage
from covnmt.kernels.triton import gru as triton_gru
from covnmt.kernels.triton.attention import AttentionSource
from covnmt.kernels.triton.coverage import CoverageConstants
from covnmt.kernels.triton.gru import GruTape
from covnmt.kernels.triton.products import ROW_MULTIPLE, linear


class ProductColumns(NamedTuple):
    """Where the columns of each part of the state's product are."""

    q: slice
    S_t: slice
    gates: slice
    width: int

    @classmethod
    def of(cls, n: int, inputs: int, after: bool) -> "ProductColumns":
        """Lay out n units and a coverage network with `inputs` pre-activations."""
        q = n if after else 0
        S_t = q + n
        gates = S_t + inputs + -inputs % ROW_MULTIPLE
        return cls(
            slice(q, S_t),
            slice(S_t, S_t + inputs),
            slice(gates, gates + 2 * n),
            gates + 2 * n,
        )


class ForwardBuffers(NamedTuple):
    """What the forward loop writes and the backward loop reads."""

    product: Tensor  # [I, B, width] the state's products; r and z in the place of their inputs
    rt: Tensor | None  # [updates, B, n] r * t of the exact cell
    c: Tensor  # [updates, B, n]
    t: Tensor  # [updates + 1, B, n]
    s: Tensor  # [I, B, 2n]
    alpha: Tensor  # [I, B, J]
    C: Tensor  # [I + 1, B, J, d]

    def tape(self, i: int, columns: ProductColumns) -> GruTape:
        """Select the update from state i to i + 1, as the one cell of a group."""
        product = self.product[i : i + 1]
        n = self.c.shape[-1]
        return GruTape(
            gates=product[..., columns.gates],
            Uh=product[..., :n] if self.rt is None else None,
            rh=None if self.rt is None else self.rt[i : i + 1],
            c=self.c[i : i + 1],
            h=self.t[i + 1 : i + 2],
        )


def _forward_steps(
    kind: CoverageConstants, columns: ProductColumns, steps: int, t0: Tensor, x: Tensor,
    source: AttentionSource, W: Tensor, U: Tensor | None, Cx: Tensor,
) -> ForwardBuffers:  # fmt: skip
    """Run all steps; x [updates, B, 3n] feeds the updates that follow the first attention steps."""
    B, J, n = source.keys.shape
    updates, h = x.shape[0], source.h
    loop = ForwardBuffers(
        product=h.new_empty(steps, B, columns.width),
        rt=None if U is None else h.new_empty(updates, B, n),
        c=h.new_empty(updates, B, n),
        t=h.new_empty(updates + 1, B, n),
        s=h.new_empty(steps, B, 2 * n),
        alpha=h.new_empty(steps, B, J, dtype=torch.float32),
        C=h.new_empty(steps + 1, B, J, kind.d, dtype=torch.float32),
    )
    loop.C[0] = kind.start
    loop.t[0] = t0
    state = t0.to(torch.float32, copy=True).unsqueeze(0)  # [1, B, n]
    context = h.new_empty(1, B, 3 * n)
    recurrent = None if U is None else U.unsqueeze(0)
    for i in range(steps):
        product = loop.product[i]
        torch.mm(loop.t[i], W.T, out=product)
        triton_attention.attend(
            kind, source, product[:, columns.q], product[:, columns.S_t],
            loop.C[i], loop.alpha[i], loop.s[i], loop.C[i + 1],
        )  # fmt: skip
        if i < updates:
            torch.mm(loop.s[i], Cx.T, out=context[0])
            tape = loop.tape(i, columns)
            triton_gru.gru_forward(x[i : i + 1], context, tape, recurrent, state, None)
    return loop


class BackwardBuffers(NamedTuple):
    """Gradients of all steps."""

    columns: Tensor  # [I, B, width + n] of the product and of the candidate
    s: Tensor  # [I, B, 2n]
    e: Tensor  # [I, B, J]
    x: Tensor  # [I, B, J, g d] of the coverage network's inputs; linguistic: of C_i
    t0: Tensor  # [B, n]


def _backward_steps(
    kind: CoverageConstants, columns: ProductColumns, loop: ForwardBuffers,
    source: AttentionSource, W: Tensor, U: Tensor | None, Cx: Tensor, d_t: Tensor,
    d_s: Tensor, d_alpha: Tensor | None,
) -> BackwardBuffers:  # fmt: skip
    """Run all steps backwards; add in place to d_t and d_s, the gradients from outside."""
    steps, B, J = loop.alpha.shape
    updates, n = loop.c.shape[0], loop.c.shape[2]
    d_all = loop.c.new_empty(steps, B, columns.width + n)
    d_all[..., columns.S_t.stop : columns.gates.start] = 0  # padding
    d_all[updates:] = 0  # no update follows the last attention step
    d_e = torch.empty_like(loop.alpha)
    d_x = loop.alpha.new_empty(steps, B, J, kind.inputs or kind.d)
    d_C = loop.C.new_zeros(B, J, kind.d)
    carried = loop.alpha.new_zeros(1, B, n)
    recurrent = None if U is None else U.unsqueeze(0)
    for i in reversed(range(steps)):
        d_step = d_all[i]
        if i < updates:
            triton_gru.gru_backward(
                d_t[i + 1 : i + 2], carried, loop.tape(i, columns), loop.t[i : i + 1], recurrent,
                None, d_all[i : i + 1, :, columns.gates.start :],
                d_all[i : i + 1, :, :n] if U is None else None,
            )  # fmt: skip
            d_s[i].addmm_(d_step[:, columns.gates.start :], Cx)
        product = loop.product[i]
        triton_attention.attend_backward(
            kind, source, product[:, columns.q], product[:, columns.S_t], loop.C[i],
            loop.alpha[i], d_s[i], None if d_alpha is None else d_alpha[i], d_C,
            d_step[:, columns.q], d_step[:, columns.S_t], d_e[i], d_x[i],
        )  # fmt: skip
        d_t[i].addmm_(d_step[:, : columns.width], W)
    return BackwardBuffers(d_all, d_s, d_e, d_x, carried[0] + d_t[0])


def _coverage_gradients(
    kind: CoverageConstants,
    source: AttentionSource,
    columns: ProductColumns,
    loop: ForwardBuffers,
    d_x: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of Phi, P and the coverage network's gates and candidate."""
    if kind.name == "none":
        return None, None, None, None
    if kind.name == "linguistic":
        moved = (loop.alpha.unsqueeze(-1) * d_x).sum(0)  # [B, J, 1]
        d_Phi = -kind.sign * moved / source.Phi.float().square()
        return d_Phi.to(source.Phi.dtype), None, None, None
    assert source.P is not None
    S_t = loop.product[..., columns.S_t]
    d_Phi, d_P, d_W = triton_coverage.network_weight_gradients(
        kind, source.Phi, source.P, source.gates, S_t, loop.C, loop.alpha, d_x
    )
    d_gates = None if source.gates is None else d_W[: 2 * kind.d]
    return d_Phi, d_P, d_gates, d_W[-kind.d :]


class _TeacherForcedDecoding(torch.autograd.Function):
    """All steps as one node of the graph; weights are packed and in the products' precision."""

    @staticmethod
    def forward(
        ctx: Any, kind: CoverageConstants, steps: int, t0: Tensor, x: Tensor, W: Tensor,
        U: Tensor | None, Cx: Tensor, *parts: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        source = AttentionSource(*parts)  # type: ignore[arg-type]
        if source.V is not None:
            source = source._replace(V=source.V.to(source.keys.dtype))
        columns = ProductColumns.of(Cx.shape[0] // 3, kind.inputs, U is None)
        loop = _forward_steps(kind, columns, steps, t0, x, source, W, U, Cx)
        ctx.kind, ctx.columns = kind, columns
        ctx.save_for_backward(W, U, Cx, *source, *loop)
        ctx.set_materialize_grads(False)
        final = loop.C[-1].clone()
        ctx.mark_non_differentiable(final)
        return loop.t, loop.s, loop.alpha, final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        W, U, Cx, *rest = ctx.saved_tensors
        source, loop = (
            AttentionSource(*rest[: len(AttentionSource._fields)]),
            ForwardBuffers(*rest[len(AttentionSource._fields) :]),
        )
        columns, updates = ctx.columns, loop.c.shape[0]
        d_t, d_s = _writable(gradients[0], loop.t), _writable(gradients[1], loop.s)
        d_alpha = None if gradients[2] is None else gradients[2].contiguous()
        back = _backward_steps(ctx.kind, columns, loop, source, W, U, Cx, d_t, d_s, d_alpha)
        cell = back.columns[:updates, :, columns.gates.start :]  # [updates, B, 3n]
        states = loop.t[: loop.s.shape[0]]
        d_keys, d_v, d_V = triton_attention.attention_weight_gradients(
            ctx.kind, source, loop.product[..., columns.q], loop.C, back.e
        )
        d_h = torch.bmm(loop.alpha.permute(1, 2, 0).to(loop.s.dtype), back.s.transpose(0, 1))
        covers = _coverage_gradients(ctx.kind, source, columns, loop, back.x)
        d_U = None if U is None else _weight_gradient(cell[..., -U.shape[0] :], loop.rt)
        d_W = _weight_gradient(back.columns[..., : columns.width], states)
        d_Phi, *network = covers
        return (
            None, None, back.t0, cell, d_W, d_U, _weight_gradient(cell, loop.s[:updates]),
            d_h, d_keys, d_Phi, None, d_v, d_V, *network,
        )  # fmt: skip


def _writable(gradient: Tensor | None, like: Tensor) -> Tensor:
    """Copy a gradient from outside, so that it may be added to."""
    if gradient is None:
        return torch.zeros_like(like)
    return torch.empty_like(like).copy_(gradient)


def _weight_gradient(d_out: Tensor, inputs: Tensor | None) -> Tensor:
    """Compute the gradient of a matrix from all steps' output gradients and inputs [I, B, .]."""
    assert inputs is not None
    return d_out.flatten(0, 1).T @ inputs.flatten(0, 1)


def supports(coverage: CoverageKernel | None, J: int) -> bool:
    """Whether there are kernels for this coverage model and for sentences of J tokens."""
    return (
        coverage is not None
        and coverage.size <= triton_coverage.MAX_UNITS
        and J <= triton_attention.MAX_TOKENS
    )


def decode_teacher_forced(
    weights: DecoderWeights, source: EncodedSource, y: Tensor, dtype: torch.dtype
) -> DecoderSteps:
    """Decode on embedded previous tokens y [B, I, m]; products and states in `dtype`."""
    cell, coverage = weights.cell, weights.coverage
    assert coverage is not None
    kind = CoverageConstants.of(coverage, dtype)
    U = [cell.candidate] if cell.reset_after else []
    missing_rows = -kind.inputs % ROW_MULTIPLE
    S = [] if coverage.S is None else [pad(coverage.S, (0, 0, 0, missing_rows))]
    state_weights = [*U, weights.W_a, *S, cell.gates]  # in the order of `ProductColumns`
    # code: the token of step i + 1 goes into the update after attention step i; paper: of step i
    first = 1 if weights.order == "code" else 0
    x = linear(y.transpose(0, 1)[first:], cell.W, cell.bias, dtype)  # [updates, B, 3n]
    attention_source = AttentionSource(
        h=source.h.to(dtype).contiguous(),
        keys=source.keys.to(dtype).contiguous(),
        Phi=source.Phi.contiguous(),
        mask=source.mask.to(torch.uint8).contiguous(),
        v=weights.v,
        V=None if weights.V_a is None else weights.V_a.T.contiguous(),
        P=coverage.P,
        gates=coverage.gates,
        candidate=coverage.candidate,
    )
    t0 = reference.initial_state(source.h, weights.W_init, weights.b_init)
    with torch.autocast(y.device.type, enabled=False):
        t, s, alpha, C = _TeacherForcedDecoding.apply(
            kind, y.shape[1], t0, x.to(dtype).contiguous(), torch.cat(state_weights).to(dtype),
            None if cell.reset_after else cell.candidate.to(dtype), weights.Cx.to(dtype),
            *attention_source,
        )  # type: ignore[no-untyped-call]  # fmt: skip
    t = t if weights.order == "code" else t[1:]
    return DecoderSteps(t.transpose(0, 1), s.transpose(0, 1), alpha.transpose(0, 1), C)
