"""An independent oracle in plain NumPy: one sentence, one token at a time, without padding.

Written from the equations of docs/paper-to-code.md, sections 1.2 and 2.1, with loops where the
model has tensors. It shares nothing with the package but the names of the weights.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covnmt.base.config import ModelConfig

Vector = NDArray[np.float64]
Weights = dict[str, Vector]


def sigmoid(x: Vector) -> Vector:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def gru(x: list[Vector], h: Vector, w: Weights, p: str, cell: str) -> Vector:
    x_r, x_z, x_c = x
    n = len(h)
    R, G, U = w[p + "gates"][:n], w[p + "gates"][n:], w[p + "candidate"]
    r = sigmoid(x_r + R @ h)
    z = sigmoid(x_z + G @ h)
    c = np.tanh(x_c + U @ (r * h)) if cell == "exact" else np.tanh(x_c + r * (U @ h))
    return np.asarray(z * c + (1 - z) * h)


def inputs(x: Vector, w: Weights, p: str) -> list[Vector]:
    W_r, W_z, W_c = np.split(w[p + "W"], 3)
    return [W_r @ x, W_z @ x, W_c @ x + w[p + "b"]]


def encode(source: list[int], w: Weights, config: ModelConfig) -> Vector:
    xs = [w["source.E"][token] + w["source.b"] for token in source]
    ahead, back = [np.zeros(config.hidden)], [np.zeros(config.hidden)]
    for x in xs:
        ahead.append(
            gru(inputs(x, w, "encoder.ahead."), ahead[-1], w, "encoder.ahead.", config.cell)
        )
    for x in reversed(xs):
        back.append(gru(inputs(x, w, "encoder.back."), back[-1], w, "encoder.back.", config.cell))
    return np.array([np.concatenate(pair) for pair in zip(ahead[1:], back[:0:-1], strict=True)])


def fertility(h_j: Vector, w: Weights, config: ModelConfig) -> float:
    if config.coverage.kind != "fertility":
        return 1.0
    logit = w["decoder.coverage.U_f"] @ h_j
    return float(config.coverage.max_fertility / (1 + np.exp(-logit)))


def cover(
    C: Vector, a: float, e: float, h_j: Vector, t: Vector, s_before: Vector, s: Vector, w: Weights,
    config: ModelConfig,
) -> Vector:  # fmt: skip
    """Compute the new coverage of one source token."""
    kind, p = config.coverage.kind, "decoder.coverage."
    if kind == "none":
        return C
    if kind in ("linguistic", "fertility"):
        share = a / fertility(h_j, w, config)
        return C + share if config.coverage.accumulate == "add" else C - share
    x = np.zeros(len(w[p + "candidate"]) * (3 if kind == "gru" else 1))
    if config.coverage.attention:
        x = x + w[p + "P"] * a
    if config.coverage.annotation:
        x = x + w[p + "Q"] @ h_j
    if config.coverage.state:
        x = x + w[p + "S"] @ t
    if config.coverage.bias:
        x = x + w[p + "b"]
    if config.coverage.previous_context:
        x = x + w[p + "from_context"] @ s_before
    if config.coverage.current_context:
        x = x + w[p + "from_current"] @ s
    if config.coverage.energies:
        x = x + w[p + "from_energies"] * e
    if kind == "tanh":
        return np.tanh(w[p + "candidate"] @ C + x)
    return gru(np.split(x, 3), C, w, p, "exact")


def forced(source: list[int], target: list[int], w: Weights, config: ModelConfig) -> dict[str, Any]:
    """Score every target token; attention and coverage of every step."""
    h = encode(source, w, config)
    J, n, d = len(source), config.hidden, config.coverage.size
    start = 1.0 if config.coverage.accumulate == "subtract" else 0.0
    C = np.full((J, d), start) if config.coverage.kind != "none" else np.zeros((J, 0))
    t = np.tanh(w["decoder.W_init.weight"] @ h[0, n:] + w["decoder.W_init.bias"])
    s = np.zeros(2 * n)
    y = np.zeros(config.embedding)
    log_probs, alphas, coverages = [], [], []
    for token in target:
        t_before = t
        e = np.array([energy(t, h_j, c, w) for h_j, c in zip(h, C, strict=True)])
        alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        s_before, s = s, alpha @ h
        rows = zip(C, alpha, e, h, strict=True)
        C = np.array(
            [cover(c, a, x, h_j, t_before, s_before, s, w, config) for c, a, x, h_j in rows]
        )
        if config.order == "paper":
            t = advance(t, y, s, w, config)
        log_probs.append(predict(t, s, y, w, config)[token])
        y = w["target.E"][token] + w["target.b"]
        if config.order == "code":
            t = advance(t, y, s, w, config)
        alphas.append(alpha)
        coverages.append(C)
    return {"log_probs": np.array(log_probs), "alpha": np.array(alphas), "C": np.array(coverages)}


def energy(t: Vector, h_j: Vector, c: Vector, w: Weights) -> float:
    p = "decoder.attention."
    inner = w[p + "W_a"] @ t + w[p + "U_a"] @ h_j
    if len(c):
        inner = inner + w[p + "V_a"] @ c
    return float(w[p + "v"] @ np.tanh(inner))


def advance(t: Vector, y: Vector, s: Vector, w: Weights, config: ModelConfig) -> Vector:
    contexts = np.split(w["decoder.Cx"] @ s, 3)
    token_inputs = inputs(y, w, "decoder.cell.")
    sums = [a + b for a, b in zip(token_inputs, contexts, strict=True)]
    return gru(sums, t, w, "decoder.cell.", config.cell)


def predict(t: Vector, s: Vector, y: Vector, w: Weights, config: ModelConfig) -> Vector:
    o = w["readout.C_o"] @ s + w["readout.U_o.weight"] @ t + w["readout.U_o.bias"]
    o = o + w["readout.V_o"] @ y
    p = np.array([max(o[2 * k], o[2 * k + 1]) for k in range(len(o) // 2)])
    if config.output == "factorised":
        p = w["readout.W_1"] @ p
    W_2 = w["target.E"] if config.tie_target else w["readout.W_2"]
    logits = W_2 @ p + w["readout.b"]
    return np.asarray(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
