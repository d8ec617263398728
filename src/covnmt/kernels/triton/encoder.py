"""The bidirectional encoder on a GPU: both directions in one loop, one batched product per step.

Everything is kept by source position, [2, J, B, .]: step k of the forward direction is at
position k, step k of the backward one at J - 1 - k. `_at_step` views the two as one [2, B, .].
Padding copies the state, so it changes neither the states nor the gradients of other tokens.
"""

from typing import Any

import torch
from torch import Tensor

from covnmt.kernels.tensors import GruWeights
from covnmt.kernels.triton import gru as triton_gru
from covnmt.kernels.triton.gru import GruTape


def _at_step(buffer: Tensor, k: int) -> Tensor:
    """View position k of the first direction and J - 1 - k of the second: [2, B, w]."""
    _, J, B, w = buffer.shape
    return buffer.as_strided(
        (2, B, w), ((2 * (J - k) - 1) * B * w, w, 1), buffer.storage_offset() + k * B * w
    )


def _step_tape(k: int, recurrent: Tensor, rh: Tensor | None, c: Tensor, states: Tensor) -> GruTape:
    """View step k of the buffers; the product has columns R, G, or U, R, G if reset acts after."""
    n = c.shape[-1]
    product = _at_step(recurrent, k)
    return GruTape(
        gates=product[..., -2 * n :],
        Uh=product[..., :n] if rh is None else None,
        rh=None if rh is None else _at_step(rh, k),
        c=_at_step(c, k),
        h=_at_step(states, k),
    )


def _recurrent_gradient(d_product: Tensor, states: Tensor) -> Tensor:
    """Return the gradient of the recurrent weights [2, w, n].

    A position reads the state of the one before it, or in the backward direction of the one after.
    """
    ahead = d_product[0, 1:].flatten(0, 1).T @ states[0, :-1].flatten(0, 1)
    back = d_product[1, :-1].flatten(0, 1).T @ states[1, 1:].flatten(0, 1)
    return torch.stack([ahead, back])


class _Encoding(torch.autograd.Function):
    """All steps as one node of the graph.

    x [2, J, B, 3n], W = [R; G] or [U; R; G] [2, w, n], U [2, n, n] or None, keep [2, J, B, 1].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, U: Tensor | None, keep: Tensor) -> Tensor:
        _, J, B, _ = x.shape
        n = W.shape[2]
        recurrent = x.new_empty(2, J, B, W.shape[1])
        c, states = x.new_empty(2, J, B, n), x.new_empty(2, J, B, n)
        rh = None if U is None else torch.empty_like(c)
        h = x.new_zeros(2, B, n, dtype=torch.float32)
        before = x.new_zeros(2, B, n)
        for k in range(J):
            torch.bmm(before, W.mT, out=_at_step(recurrent, k))
            tape = _step_tape(k, recurrent, rh, c, states)
            triton_gru.gru_forward(_at_step(x, k), None, tape, U, h, _at_step(keep, k))
            before = tape.h
        ctx.save_for_backward(W, U, keep, recurrent, rh, c, states)
        return states.permute(2, 1, 0, 3).flatten(2)  # [B, J, 2n]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        W, U, keep, recurrent, rh, c, states = ctx.saved_tensors
        _, J, B, n = states.shape
        w = W.shape[1]
        d_h = gradients[0].unflatten(2, (2, n)).permute(2, 1, 0, 3)
        d_h = d_h.clone(memory_format=torch.contiguous_format)
        d_all = c.new_empty(2, J, B, w + n)  # W's columns, then c
        carried = c.new_zeros(2, B, n, dtype=torch.float32)
        for k in reversed(range(J)):
            before = _at_step(states, k - 1) if k else c.new_zeros(2, B, n)
            d_step = _at_step(d_all, k)
            triton_gru.gru_backward(
                _at_step(d_h, k), carried, _step_tape(k, recurrent, rh, c, states), before, U,
                _at_step(keep, k), d_step[..., -3 * n :], d_step[..., :n] if U is None else None,
            )  # fmt: skip
            if k:
                _at_step(d_h, k - 1).baddbmm_(d_step[..., :w], W)
        d_U = None
        if rh is not None:
            d_U = torch.bmm(d_all[..., w:].flatten(1, 2).mT, rh.flatten(1, 2))
        return d_all[..., -3 * n :], _recurrent_gradient(d_all[..., :w], states), d_U, None


def encode(
    ahead: GruWeights, back: GruWeights, x: Tensor, mask: Tensor, dtype: torch.dtype
) -> Tensor:
    """Annotate embedded tokens [B, J, m]: [B, J, 2n]; products and result in `dtype`."""
    B, J, m = x.shape
    cells = ahead, back
    weights = torch.stack([cell.W for cell in cells]).to(dtype)  # [2, 3n, m]
    bias = torch.stack([cell.b for cell in cells])  # [2, n]
    bias = torch.nn.functional.pad(bias, (2 * bias.shape[1], 0)).to(dtype)
    inputs = x.to(dtype).transpose(0, 1).reshape(1, J * B, m).expand(2, -1, -1)
    projected = torch.baddbmm(bias.unsqueeze(1), inputs, weights.mT)  # [2, J B, 3n]
    gates = torch.stack([cell.gates for cell in cells]).to(dtype)
    U = torch.stack([cell.candidate for cell in cells]).to(dtype)
    after = ahead.reset_after
    keep = mask.T.to(torch.uint8).expand(2, -1, -1).unsqueeze(-1).contiguous()
    with torch.autocast(x.device.type, enabled=False):
        h: Tensor = _Encoding.apply(
            projected.unflatten(1, (J, B)),
            torch.cat([U, gates], dim=1) if after else gates,
            None if after else U,
            keep,
        )  # type: ignore[no-untyped-call]
    return h
