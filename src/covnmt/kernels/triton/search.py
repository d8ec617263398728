# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""The selection step of beam search on a GPU: two Triton kernels between logits and the next beam.

`scan_kernel` reads the logits once. It writes the best allowed logit of every block of tokens, and
what the normalizer needs: the peak of every chunk (several blocks) and the sum of exponentials
below it. `choose_kernel` then has one program per sentence. The K best continuations lie in the K
blocks with the best maxima, so it reads those blocks, chooses among their tokens, and records which
hypotheses end; equal scores go to the lower position.

Same results as `decoding.gpu.step.select_continuations`. Letters: S sentences with `slots`
rows of logits each, K slots of the next beam, V tokens in blocks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from covnmt.kernels.tensors import BeamBuffers

BLOCK = 128  # tokens
CHUNK = 16  # blocks that one program of `scan_kernel` reads
SCAN_WARPS, CHOOSE_WARPS = 4, 4
MAX_BLOCK_MAXIMA = 2**14  # maxima of a sentence that one program of `choose_kernel` can hold
NO_POSITION = tl.constexpr(2**30)  # a position after all others


@triton.jit
def mask_forbidden(x, token, forbidden_ids, early, END: tl.constexpr):
    """Mask the logits of tokens that must not follow."""
    x = tl.where(
        (token == tl.load(forbidden_ids)) | (token == tl.load(forbidden_ids + 1)), float("-inf"), x
    )
    return tl.where(token == tl.where(early, END, -1), float("-inf"), x)


@triton.jit
def before_minimum_length(min_steps, clock, sentence):
    return tl.load(min_steps + sentence) > tl.load(clock)


@triton.jit(do_not_specialize=["slots"])
def scan_kernel(
    logits, forbidden_ids, min_steps, clock, maxima, peaks, sums, slots,
    V: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Maxima of blocks, and peak and sum of a chunk, of one row of logits."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    block = chunk * CHUNK + tl.arange(0, CHUNK)
    token = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
    peak = tl.max(x)
    total = tl.sum(tl.exp(x - tl.where(peak > float("-inf"), peak, 0.0)))
    at = row * tl.num_programs(1) + chunk
    tl.store(peaks + at, peak)
    tl.store(sums + at, total)
    x = mask_forbidden(
        x, token, forbidden_ids, before_minimum_length(min_steps, clock, row // slots), END
    )
    tl.store(maxima + row * (V // BLOCK) + block, tl.max(x, axis=1), mask=block < V // BLOCK)


@triton.jit
def log_normalizers(peaks, sums, first, slot, slots, CHUNKS: tl.constexpr, WIDE: tl.constexpr):
    """log sum exp of every slot's logits; 0 where there are none."""
    chunk = tl.arange(0, WIDE)
    at = (first + slot)[:, None] * CHUNKS + chunk[None, :]
    inside = (slot < slots)[:, None] & (chunk < CHUNKS)[None, :]
    peak = tl.load(peaks + at, mask=inside, other=float("-inf"))
    total = tl.load(sums + at, mask=inside, other=0.0)
    highest = tl.max(peak, axis=1)
    highest = tl.where(highest > float("-inf"), highest, 0.0)
    total = tl.sum(total * tl.exp(peak - highest[:, None]), axis=1)
    return highest + tl.log(tl.where(total > 0, total, 1.0))


@triton.jit
def first_best(scores, positions):
    """The highest score and the lowest position that has it; nowhere if there is none."""
    score = tl.max(scores)
    at = tl.min(tl.where(scores == score, positions, NO_POSITION))
    return score, tl.where(score > float("-inf"), at, NO_POSITION)


@triton.jit
def best_of(scores, positions, slot, K: tl.constexpr, WIDE_K: tl.constexpr):
    """The K highest scores, one in each slot, and their positions; nowhere if there are fewer."""
    top_scores = tl.full([WIDE_K], float("-inf"), tl.float32)
    top_positions = tl.full([WIDE_K], NO_POSITION, tl.int32)
    for k in range(K):
        score, at = first_best(scores, positions)
        top_scores = tl.where(slot == k, score, top_scores)
        top_positions = tl.where(slot == k, at, top_positions)
        scores = tl.where(positions == at, float("-inf"), scores)
    return top_scores, top_positions


@triton.jit(do_not_specialize=["slots"])
def choose_kernel(
    logits, forbidden_ids, min_steps, max_steps, clock, maxima, peaks, sums, slots,
    log_probs, widths, live, token_ids, choices, ended, rows,
    K: tl.constexpr, V: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr, WIDE_K: tl.constexpr, WIDE_BLOCKS: tl.constexpr,
    WIDE_CHUNKS: tl.constexpr,
):  # fmt: skip
    """The K best continuations of one sentence, and the beam after them."""
    sentence = tl.program_id(0).to(tl.int64)
    # before the loops: their barriers keep these apart from the stores at the end
    step = tl.load(clock)
    width = tl.load(widths + sentence)
    slot = tl.arange(0, WIDE_K)
    here = sentence * K + slot
    first = sentence * slots
    beam = tl.load(log_probs + here, mask=(slot < slots) & (slot < K), other=float("-inf"))
    lse = log_normalizers(peaks, sums, first, slot, slots, CHUNKS, WIDE_CHUNKS)

    # the blocks with the best maxima
    block = tl.arange(0, WIDE_BLOCKS)
    inside = (slot < slots)[:, None] & (block < V // BLOCK)[None, :]
    number = slot[:, None] * (V // BLOCK) + block[None, :]
    best = tl.load(maxima + first * (V // BLOCK) + number, mask=inside, other=float("-inf"))
    best = beam[:, None] + (best - lse[:, None])
    _, blocks = best_of(best, number, slot, K, WIDE_K)

    # the best of their tokens
    exists = blocks < NO_POSITION
    parent = tl.where(exists, blocks // (V // BLOCK), 0)
    is_parent = parent[:, None] == slot[None, :]
    behind = tl.sum(tl.where(is_parent, beam[None, :], 0.0), axis=1)
    lse = tl.sum(tl.where(is_parent, lse[None, :], 0.0), axis=1)
    position = tl.where(exists, blocks, 0)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits + first * V + position, mask=exists[:, None], other=float("-inf"))
    early = before_minimum_length(min_steps, clock, sentence)
    x = mask_forbidden(x.to(tl.float32), position - parent[:, None] * V, forbidden_ids, early, END)
    x = tl.where(exists[:, None], behind[:, None] + (x - lse[:, None]), float("-inf"))
    scores, choice = best_of(x, position, slot, K, WIDE_K)
    choice = tl.where(choice < NO_POSITION, choice, 0)

    # which of them end
    parent = choice // V
    token = choice - parent * V
    chosen = (slot < width) & (scores > float("-inf"))
    finished = chosen & (token == END)
    stops = finished | (tl.load(max_steps + sentence) <= step + 1)
    continues = chosen & (stops == 0)
    tl.store(widths + sentence, width - tl.sum(finished.to(tl.int64)))
    tl.store(live + sentence, tl.max(continues.to(tl.int32)) > 0)
    real = slot < K
    tl.store(log_probs + here, tl.where(continues, scores, float("-inf")), mask=real)
    tl.store(token_ids + here, token, mask=real)
    tl.store(rows + here, first + parent, mask=real)
    row = tl.load(clock + 1) * tl.num_programs(0) * K
    tl.store(choices + row + here, choice, mask=real)
    tl.store(ended + row + here, tl.where(chosen & stops, scores, float("-inf")), mask=real)


def fits_beam(K: int, V: int) -> bool:
    """Return whether a program can hold a beam of K over a vocabulary of V."""
    wide: int = triton.next_power_of_2(max(BLOCK, V // BLOCK))
    return V % BLOCK == 0 and wide * int(triton.next_power_of_2(K)) <= MAX_BLOCK_MAXIMA


def select_continuations(buffers: BeamBuffers, logits: Tensor, end: int) -> Tensor:
    """Choose from logits [S, slots, V], record it, and return the parent rows [S*K] of the beam."""
    S, slots, V = logits.shape
    K = buffers.log_probs.shape[1]
    chunks = triton.cdiv(V, BLOCK * CHUNK)
    maxima = logits.new_empty(S * slots, V // BLOCK, dtype=torch.float32)
    peaks = logits.new_empty(S * slots, chunks, dtype=torch.float32)
    sums = torch.empty_like(peaks)
    rows = torch.empty_like(buffers.token_ids)
    rules = (buffers.forbidden_ids, buffers.min_steps)
    scan_kernel[(S * slots, chunks)](
        logits, *rules, buffers.clock, maxima, peaks, sums, slots,
        V=V, END=end, BLOCK=BLOCK, CHUNK=CHUNK, num_warps=SCAN_WARPS,
    )  # fmt: skip
    choose_kernel[(S,)](
        logits, *rules, buffers.max_steps, buffers.clock, maxima, peaks, sums, slots,
        buffers.log_probs, buffers.widths, buffers.live, buffers.token_ids, buffers.choices,
        buffers.ended, rows, K=K, V=V, END=end, BLOCK=BLOCK, CHUNKS=chunks,
        WIDE_K=triton.next_power_of_2(K), WIDE_BLOCKS=triton.next_power_of_2(V // BLOCK),
        WIDE_CHUNKS=triton.next_power_of_2(chunks), num_warps=CHOOSE_WARPS,
    )  # fmt: skip
    return rows
