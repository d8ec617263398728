"""Candidates alone, held to float64 and measured in turns, for `update.py`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import update_candidates as candidates
from harness import summary
from torch import Tensor
from train import Setup
from update_candidates import CANDIDATES, Candidate
from update_steps import OPTIMIZERS, build, check_device, describe, interleaved

from covnmt.base.config import TrainConfig
from covnmt.kernels.triton import loss, optimizer, products

RUNS = 4 if torch.cuda.is_available() else 1  # of a candidate in a graph


class Version(NamedTuple):
    """A version of some kernels."""

    run: Callable[[], dict[str, Tensor]]
    candidate: Candidate = CANDIDATES["package"]


class Comparison(NamedTuple):
    """Versions that compute the same, and how far each may be from the truth."""

    versions: dict[str, Version]
    truth: dict[str, Tensor]  # float64
    allowed: float
    view: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # what is compared of the results
    reset: Callable[[], None] = lambda: None  # restores inputs that were overwritten
    start: dict[str, Tensor] | None = None  # what results are measured from, if not from zero


def measure(comparison: Comparison, setup: Setup, leave_out: list[str]) -> list[dict[str, Any]]:
    """Check each version, then measure all that ran, in turns."""
    rows: list[dict[str, Any]] = []
    calls: dict[str, Callable[[], object]] = {}
    start = comparison.start or {}
    for name, version in comparison.versions.items():
        if name in leave_out:
            continue
        try:
            comparison.reset()
            with version.candidate():
                results = comparison.view(version.run())
                errors = {
                    key: relative_error(value, comparison.truth[key], start.get(key))
                    for key, value in results.items()
                }
                calls[name] = captured(version, setup.device)
            right = all(error <= comparison.allowed for error in errors.values())
            rows.append({"version": name, "errors": errors, "right": right})
        except Exception as error:
            check_device(setup.device, name)
            rows.append({"version": name, "error": describe(error)})
    comparison.reset()
    times = interleaved(calls, setup)
    for row in rows:
        name = row["version"]
        if name in times:
            row["microseconds"] = summary([1000 * ms / RUNS for ms in times[name]])
            state = "" if row["right"] else f"  WRONG (allowed {comparison.allowed})"
            worst = max(row["errors"].values(), default=0.0)
            print(
                f"  {name:28} {row['microseconds']['median']:8.1f} us"
                f" ({row['microseconds']['low']:.1f} to {row['microseconds']['high']:.1f})"
                f"  error {worst:.1e}{state}"
            )
        else:
            print(f"  {name:28} FAILED: {row['error'].splitlines()[-1][:90]}")
    return rows


def relative_error(actual: Tensor, truth: Tensor, start: Tensor | None) -> float:
    """Return |actual - truth| / |truth - start|; infinite where something is not finite."""
    size = truth if start is None else truth - start.double()
    error = float((actual.detach().double() - truth).norm() / size.norm())
    return error if error == error else float("inf")


def captured(version: Version, device: torch.device) -> Callable[[], object]:
    """Return a call that replays a version; the interpreter has nothing to replay."""
    if device.type != "cuda":

        def call() -> None:
            with version.candidate():
                version.run()

        return call
    version.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(RUNS):
            version.run()
    return graph.replay


def compare_optimizer(setup: Setup, kind: str) -> Comparison:
    """Update all weights of the model."""
    shapes = [weight.shape for weight in build(setup, kind).model.parameters()]
    config = TrainConfig.model_validate(OPTIMIZERS[kind])

    def random_state() -> list[Tensor]:
        return [torch.randn(shape, device=setup.device) * 0.05 for shape in shapes]

    weights, gradients, first, second = (random_state() for _ in range(4))
    second = [x.square() for x in second]
    kernel, constants = optimizer.adamw, [*config.betas, config.epsilon, config.weight_decay]
    if kind == "adadelta":
        first = [x.square() for x in first]
        kernel, constants = optimizer.adadelta, [config.rho, config.epsilon]
    norm, rate, updates, share = (
        torch.tensor(value, device=setup.device) for value in (2.0, 0.01, 7.0, 0.0)
    )
    scalars = optimizer.UpdateScalars(norm, rate, updates, share)
    state = [*weights, *first, *second]
    kept = [x.clone() for x in state]

    def reset() -> None:
        torch._foreach_copy_(state, kept)

    def run() -> dict[str, Tensor]:
        optimizer.update_weights(
            weights, gradients, first, second, [None] * len(weights), scalars, 1.0,
            kernel, constants,
        )  # fmt: skip
        return outputs()

    def outputs() -> dict[str, Tensor]:
        return {f"{part} {i}": xs[i] for part, xs in parts.items() for i in checked}

    parts = {"weight": weights, "first": first, "second": second}
    checked = range(len(weights))
    truth: dict[str, Tensor] = {}
    for i in checked:
        w, g, m, v = (x[i].double() for x in (weights, gradients, first, second))
        new = float64_step(kind, config, w, g / 2 / (1 + 5e-7), m, v, lr=0.01, t=7)
        truth |= dict(zip((f"{part} {i}" for part in parts), new, strict=True))
    versions = {
        "before": Version(run, candidates.narrow_optimizer),
        "package": Version(run),
        "package again": Version(run),
        "one launch": Version(run, candidates.one_launch),
        "one launch, blocks of 2048": Version(run, lambda: candidates.one_launch_block(2048)),
    }
    start = {
        f"{part} {i}": kept[k * len(weights) + i] for k, part in enumerate(parts) for i in checked
    }
    return Comparison(versions, truth, 1e-3, reset=reset, start=start)


def float64_step(
    kind: str, config: TrainConfig, w: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, t: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight and state after the rules of docs/paper-to-code.md, section 1.4."""
    if kind == "adadelta":
        square = config.rho * m + (1 - config.rho) * g * g
        step = (v + config.epsilon).sqrt() / (square + config.epsilon).sqrt() * g
        return w - lr * step, square, config.rho * v + (1 - config.rho) * step * step
    beta1, beta2 = config.betas
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    step = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + config.epsilon)
    return w * (1 - lr * config.weight_decay) - lr * step, m, v


def compare_loss(setup: Setup, pairs: int) -> Comparison:
    """Turn logits into losses and gradients; each version first copies the logits."""
    V = setup.size.words
    width = V + -V % loss.VOCABULARY_MULTIPLE
    rows = min(pairs * setup.target, max(1, loss.CHUNK // width))
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    original = (2 * torch.randn(rows, width, device=setup.device)).to(dtype)
    logits = original.clone()
    target = torch.randint(0, V, (rows,), device=setup.device)
    weight = (torch.rand(rows, device=setup.device) < 0.8).float()
    losses, nll = torch.empty(2, rows, device=setup.device)
    some = torch.randperm(rows, device=setup.device)[:64]

    def copy_only() -> dict[str, Tensor]:
        logits.copy_(original)
        return {}

    def run() -> dict[str, Tensor]:
        logits.copy_(original)
        loss.loss_and_gradient_kernel[(rows,)](
            logits, target, weight, losses, nll, 0.1, V,
            width, loss.BLOCK, loss.STAGES, True, num_warps=loss.WARPS,
        )  # fmt: skip
        return {"loss": losses, "nll": nll, "gradient": logits}

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value[some] for key, value in results.items()}

    def poison() -> None:
        losses.fill_(float("nan"))
        nll.fill_(float("nan"))

    x = original[some, :V].double().requires_grad_()
    log_probs, w, y = torch.log_softmax(x, 1), weight[some].double(), target[some]
    true_nll = -log_probs.gather(1, y[:, None])[:, 0] * w
    true_loss = 0.9 * true_nll - 0.1 * log_probs.mean(1) * w
    (gradient,) = torch.autograd.grad(true_loss.sum(), x)
    gradient = torch.nn.functional.pad(gradient, (0, width - V))
    truth = {"loss": true_loss.detach(), "nll": true_nll.detach(), "gradient": gradient}
    tilings = [(4096, 8, 1), (4096, 8, 3), (2048, 8, 3), (8192, 16, 3)]
    versions = {
        "copy of the logits only": Version(copy_only),
        "before": Version(run, candidates.narrow_loss),
        "package": Version(run),
        "package again": Version(run),
    }
    for tiling in tilings:
        name = "{} logits, {} warps, {} stages".format(*tiling)
        versions[name] = Version(run, lambda tiling=tiling: candidates.loss_tiling(*tiling))  # type: ignore[misc]
    return Comparison(versions, truth, 1e-2, view, poison)


def compare_output_gradient(setup: Setup, pairs: int) -> Comparison:
    """Sum the gradient of the output layer's weights over chunks of rows, and scale it."""
    V, q = setup.size.words, setup.size.embedding
    width, features = V + -V % loss.VOCABULARY_MULTIPLE, q + 1 + -(q + 1) % 8
    dtype = torch.bfloat16 if setup.precision == "bf16" else torch.float32
    rows, size = pairs * setup.target, max(1, loss.CHUNK // width)
    d_logits = (torch.randn(rows, width, device=setup.device) * 0.01).to(dtype)
    x = torch.randn(rows, features, device=setup.device).to(dtype)
    scale = torch.tensor(0.3, device=setup.device)
    some = torch.randperm(V, device=setup.device)[:64]

    def package() -> dict[str, Tensor]:
        total = torch.zeros(width, features, device=setup.device)
        for start in range(0, rows, size):
            total += d_logits[start : start + size].T @ x[start : start + size]
        return {"gradient": total[:V, :q] * scale}

    def float32() -> dict[str, Tensor]:
        total = None
        for start in range(0, rows, size):
            part = slice(start, start + size)
            total = candidates.add_product(total, d_logits[part].T, x[part])
        assert total is not None
        return {"gradient": total[:V, :q] * scale}

    truth = {"gradient": d_logits[:, some].double().T @ x[:, :q].double() * scale.double()}
    versions = {"package": Version(package), "package again": Version(package)}
    versions["float32 product"] = Version(float32)

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"gradient": results["gradient"][some]}

    return Comparison(versions, truth, 1e-2, view)


def compare_embedding(setup: Setup, pairs: int, zipf: bool) -> Comparison:
    """Sum the gradients of embedded tokens, whose frequencies are equal or as in text."""
    V, M, N = setup.size.words, setup.size.embedding, pairs * setup.source
    frequency = 1 / torch.arange(1, V + 1, device=setup.device) if zipf else torch.ones(V)
    ids = torch.multinomial(frequency.to(setup.device), N, replacement=True)
    d_y = torch.randn(N, M, device=setup.device)

    def pytorch() -> dict[str, Tensor]:
        return {"gradient": torch.ops.aten.embedding_dense_backward(d_y, ids, V, -1, False)}

    def own() -> dict[str, Tensor]:
        return {"gradient": candidates.dense_gradient(ids, d_y, V)}

    def compact() -> dict[str, Tensor]:
        rows, table = candidates.compact_gradient(ids, d_y, V)
        return {"rows": rows, "table": table}

    def view(results: dict[str, Tensor]) -> dict[str, Tensor]:
        if "rows" not in results:
            return results
        rows, table = results["rows"], results["table"].long()
        gradient = torch.where(table[:, None] >= 0, rows[table.clamp(min=0)], 0)
        return {"gradient": gradient, "norm": rows.norm()}

    dense = torch.zeros(V, M, device=setup.device, dtype=torch.float64)
    dense.index_add_(0, ids, d_y.double())
    truth = {"gradient": dense, "norm": dense.norm()}
    versions = {"package": Version(pytorch), "package again": Version(pytorch)}
    versions["own kernels"] = Version(own)
    versions["compact"] = Version(compact)
    return Comparison(versions, truth, 1e-4, view)


def compare_linear(setup: Setup, pairs: int) -> Comparison:
    """Multiply the embedded target by the readout's weights, and go back."""
    m, n = setup.size.embedding, setup.size.hidden
    x = torch.randn(pairs, setup.target, m, device=setup.device, requires_grad=True)
    W = torch.randn(n, m, device=setup.device, requires_grad=True)
    d_y = torch.randn(pairs, setup.target, n, device=setup.device)

    def run() -> dict[str, Tensor]:
        with torch.autocast(setup.device.type, torch.bfloat16):
            y = products.linear(x, W, None, torch.bfloat16)
        d_x, d_W = torch.autograd.grad(y, (x, W), d_y.to(y.dtype))
        return {"y": y, "d_x": d_x, "d_W": d_W}

    a, b, d = x.detach().double(), W.detach().double(), d_y.double()
    truth = {"y": a @ b.T, "d_x": d @ b, "d_W": d.flatten(0, 1).T @ a.flatten(0, 1)}
    versions = {"package": Version(run), "package again": Version(run)}
    versions["padded copies"] = Version(run, candidates.padded_copies)
    return Comparison(versions, truth, 1e-2)


def comparisons(
    setup: Setup, batches: list[int], optimizers: list[str]
) -> dict[str, Callable[[], Comparison]]:
    """Return the comparisons by name, the most promising first."""
    result: dict[str, Callable[[], Comparison]] = {}
    for pairs in batches:
        result[f"softmax and loss, batch {pairs}"] = partial(compare_loss, setup, pairs)
        for text in (True, False):
            name = f"embedding gradient, batch {pairs}, {'Zipf' if text else 'uniform'}"
            result[name] = partial(compare_embedding, setup, pairs, text)
    for kind in optimizers:
        result[kind] = partial(compare_optimizer, setup, kind)
    for pairs in batches:
        name = f"output layer's gradient, batch {pairs}"
        result[name] = partial(compare_output_gradient, setup, pairs)
        result[f"padded product, batch {pairs}"] = partial(compare_linear, setup, pairs)
    return result
