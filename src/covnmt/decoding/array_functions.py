"""Top-k and the means of an ensemble, written once for NumPy arrays and torch tensors."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from covnmt.base.arrays import AnyArray

if TYPE_CHECKING:
    from torch import Tensor

ArrayT = TypeVar("ArrayT", AnyArray, "Tensor")


def array_module(array: Any) -> Any:
    """Return the module with functions for this array: NumPy or torch, where it is installed."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def top_k(
    scores: ArrayT, k: int, block: int = 0, offsets: ArrayT | None = None
) -> tuple[ArrayT, ArrayT]:
    """Return the k highest of every row [R, N], best first, and their positions.

    Equal scores go to the lower position. `torch.topk` and `np.argpartition` leave ties open and a
    stable sort of all N is slow, so two small sorts do it: the row is cut into blocks, and whatever
    belongs to the k highest lies in one of the k blocks with the highest maxima (each better block
    holds a better score), or in the rest after the last whole block.

    With offsets [R, slots] each row is `slots` equal segments, and a segment's offset is added to
    its scores. Not all of these sums are computed: rounding keeps order, so the highest sum of a
    block is that of its highest score. The length of a segment must be a multiple of the block's.
    """
    xp = array_module(scores)
    R, N = scores.shape
    size = block or max(1, math.isqrt(N // k))
    whole = N - N % size
    maxima = xp.amax(scores[:, :whole].reshape(R, whole // size, size), -1)  # [R, blocks]
    if offsets is not None:
        maxima = (maxima.reshape(*offsets.shape, -1) + offsets[:, :, None]).reshape(R, -1)
    blocks = _sort_ascending(sort_descending(maxima)[1][:, :k])  # so that positions ascend
    positions = blocks[:, :, None] * size + _positions(0, size, scores)  # [R, k, size]
    candidates = _gather(scores, positions.reshape(R, -1))
    if offsets is not None:
        parts = _gather(offsets, blocks // (whole // size // offsets.shape[1]))
        candidates = (candidates.reshape(positions.shape) + parts[:, :, None]).reshape(R, -1)
    positions = positions.reshape(R, -1)
    if whole < N:
        rest = xp.broadcast_to(_positions(whole, N, scores), (R, N - whole))
        positions = xp.concatenate((positions, rest), 1)
        candidates = xp.concatenate((candidates, scores[:, whole:]), 1)
    values, order = sort_descending(candidates)
    return values[:, :k], _gather(positions, order[:, :k])


def sort_descending(scores: ArrayT) -> tuple[ArrayT, Any]:
    """Sort rows, the highest first and equal scores by position; return values and positions."""
    if isinstance(scores, np.ndarray):
        order = (-scores).argsort(axis=-1, kind="stable")
        return np.take_along_axis(scores, order, axis=-1), order
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    return values, order


def _sort_ascending(values: Any) -> Any:
    return np.sort(values) if isinstance(values, np.ndarray) else values.sort(dim=-1).values


def _gather(values: Any, positions: Any) -> Any:
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, positions, axis=-1)
    return values.gather(-1, positions)


def _positions(start: int, stop: int, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.arange(start, stop)
    return array_module(like).arange(start, stop, device=like.device)


def mean_log_probs(members: Sequence[ArrayT]) -> ArrayT:
    """Return the logarithm of the members' mean probability."""
    total: ArrayT = reduce(array_module(members[0]).logaddexp, members)
    return total - math.log(len(members))


def mean(members: Sequence[ArrayT]) -> ArrayT:
    """Return the mean of arrays of one shape."""
    total: ArrayT = array_module(members[0]).stack(members).mean(0)
    return total


def mean_or_none(members: Sequence[ArrayT | None]) -> ArrayT | None:
    """Return the mean, or None if a member has no value: then it cannot be compared."""
    values = [member for member in members if member is not None]
    return mean(values) if len(values) == len(members) else None
