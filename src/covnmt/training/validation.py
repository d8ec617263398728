"""Validation during training: loss and BLEU on the dev set, and a few sample translations."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from covnmt.base.config import Config
from covnmt.data.batching import evaluation_batches, read_batch
from covnmt.data.corpus import Corpus, Split
from covnmt.inference.model import Model
from covnmt.metrics.alignment import format_links, links_from_attention
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec
from covnmt.training.distributed import SINGLE_PROCESS, World, interleave
from covnmt.training.loss import token_loss

SAMPLES = 3


@dataclass(frozen=True)
class DevSet:
    """The dev set, read once: preparing the data again does not change a run in progress."""

    split: Split
    source: Codec
    target: Codec
    lines: list[str]
    references: list[str]

    @classmethod
    def open(cls, corpus: Corpus) -> "DevSet":
        """Read the dev set of a prepared corpus."""
        split = corpus.split("dev")
        sides = corpus.codec("source"), corpus.codec("target")
        return cls(split, *sides, split.text("source"), split.text("target"))


@dataclass(frozen=True)
class Sample:
    """A dev line, its translation and its reference."""

    source: str
    output: str
    reference: str
    links: str  # Pharaoh format, each output token to the source token with the most attention


@dataclass(frozen=True)
class ValidationResult:
    """Scores on the dev set."""

    loss: float  # negative log-likelihood per target token, end symbols included
    bleu: float | None
    samples: tuple[Sample, ...]

    def summary(self) -> str:
        """Return loss, perplexity and BLEU in one line."""
        bleu = "" if self.bleu is None else f"  BLEU {self.bleu:.2f}"
        return f"dev loss {self.loss:.3f}  perplexity {math.exp(min(self.loss, 50)):.1f}{bleu}"


class ValidationInterruptedError(Exception):
    """Training is to stop; the result is no longer needed."""


def validate(
    model: Seq2Seq,
    dev: DevSet,
    config: Config,
    device: torch.device,
    world: World = SINGLE_PROCESS,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> ValidationResult | None:
    """Score the model on the dev set; the ranks share the work and all return the same result.

    `is_interrupted` is asked after every decoding step, on a GPU after every batch. If it returns
    True on any rank, all ranks return None.
    """

    def watch(*progress: object) -> None:
        if is_interrupted():
            raise ValidationInterruptedError

    model.eval()
    result = None
    texts: list[str] = []
    samples: list[Sample] = []
    with suppress(ValidationInterruptedError):
        nll, target_tokens = total_nll(model, dev.split, device, world, watch)
        if config.train.validate_bleu:
            texts, samples = translate_rank_share(model, dev, config, world, watch)
        result = nll, target_tokens, texts, samples
    results = [result for result in world.all_gather(result) if result is not None]
    if len(results) < world.size:
        return None
    nlls, token_counts, all_texts, all_samples = zip(*results, strict=True)
    loss = sum(nlls) / sum(token_counts)
    if not config.train.validate_bleu:
        return ValidationResult(loss, None, ())
    texts, samples = interleave(all_texts), interleave(all_samples)
    bleu = paper_bleu(texts, [dev.references[: len(texts)]]).value
    return ValidationResult(loss, bleu, tuple(samples))


def translate_rank_share(
    model: Seq2Seq, dev: DevSet, config: Config, world: World, watch: Callable[..., None]
) -> tuple[list[str], list[Sample]]:
    """Translate this rank's lines; return the texts and the samples among them."""
    lines = config.train.validate_lines or len(dev.lines)
    # A half-trained model may never end a sentence; retrying with wider beams would take long.
    decode = config.decode.model_copy(
        update={"beam": config.train.validate_beam, "nbest": 1, "retry": False}
    )
    translator = Model([model], dev.source, dev.target, decode)
    outputs = translator.translate(world.shard(dev.lines[:lines]), on_step=watch)
    references = world.shard(dev.references[:lines][:SAMPLES])
    samples = [
        Sample(
            source=" ".join(output.source_tokens),
            output=" ".join(output.tokens),
            reference=reference,
            links=format_links(links_from_attention(output.alignment)),
        )
        for output, reference in zip(outputs, references, strict=False)
    ]
    return [output.text for output in outputs], samples


@torch.inference_mode()
def total_nll(
    model: Seq2Seq, split: Split, device: torch.device, world: World, watch: Callable[..., None]
) -> tuple[float, int]:
    """Return the negative log-likelihood and the target tokens of this rank's batches.

    `watch` is called in between, and may raise to interrupt.
    """
    total, target_tokens = 0.0, 0
    for indices in world.shard(list(evaluation_batches(split, batch_size=64))):
        watch()
        batch = read_batch(split, indices).to(device)
        features = model(batch).features
        _, nll = token_loss(model.readout, features, batch.target, batch.target_mask, 0.0)
        total += nll.item()
        target_tokens += batch.target_tokens
    return total, target_tokens
