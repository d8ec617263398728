"""How good a model is while it trains: loss and BLEU on the dev set, and a look at a few lines."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from covnmt.base.config import Config
from covnmt.data.batching import evaluation_batches, read_batch
from covnmt.data.corpus import Corpus, Split
from covnmt.inference.translate import Translation, Translator
from covnmt.metrics.alignment import format_links, links_from_attention
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.codec import Codec
from covnmt.training.distributed import SINGLE_PROCESS, World, interleave
from covnmt.training.loss import token_loss

SAMPLES = 3


@dataclass(frozen=True)
class DevSet:
    """A dev set, opened once: data that are prepared anew while a run goes on do not change it."""

    split: Split
    source: Codec
    target: Codec
    lines: list[str]
    references: list[str]

    @classmethod
    def open(cls, corpus: Corpus) -> "DevSet":
        """That of a prepared corpus."""
        split = corpus.split("dev")
        sides = corpus.codec("source"), corpus.codec("target")
        return cls(split, *sides, split.source_text(), split.target_text())


@dataclass(frozen=True)
class Sample:
    """One dev line and what the model made of it."""

    source: str
    output: str
    reference: str
    links: str  # Pharaoh, each output token to the source token it looked at most


@dataclass(frozen=True)
class ValidationResult:
    """Scores on the dev set."""

    loss: float  # negative log-likelihood per target token, end symbols included
    bleu: float | None
    samples: tuple[Sample, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    def summary(self) -> str:
        """In a line."""
        bleu = "" if self.bleu is None else f"  BLEU {self.bleu:.2f}"
        return f"dev loss {self.loss:.3f}  perplexity {math.exp(min(self.loss, 50)):.1f}{bleu}"


@dataclass(frozen=True)
class RankResult:
    """What one worker found in its part of the dev set."""

    nll: float
    words: int
    texts: tuple[str, ...]
    samples: tuple[Sample, ...]


class ValidationInterruptedError(Exception):
    """Nobody waits for the result any more."""


def validate(
    model: Seq2Seq,
    dev: DevSet,
    config: Config,
    device: torch.device,
    world: World = SINGLE_PROCESS,
    stopped: Callable[[], bool] = lambda: False,
) -> ValidationResult | None:
    """Score the model on a dev set; several workers share the work.

    `stopped` is asked after every step, on a GPU after every batch. If it says so to any worker,
    none has a result.
    """

    def watch(*progress: object) -> None:
        if stopped():
            raise ValidationInterruptedError

    model.eval()
    found: RankResult | None = None
    with suppress(ValidationInterruptedError):
        found = validate_shard(model, dev, config, device, world, watch)
    shares = [part for part in world.all_gather(found) if part is not None]
    if len(shares) < world.size:
        return None
    loss = sum(part.nll for part in shares) / sum(part.words for part in shares)
    if not config.train.validate_bleu:
        return ValidationResult(loss, None, ())
    texts = interleave([part.texts for part in shares])
    samples = interleave([part.samples for part in shares])
    references = dev.references[: len(texts)]
    return ValidationResult(loss, paper_bleu(texts, [references]).value, tuple(samples))


def validate_shard(
    model: Seq2Seq,
    dev: DevSet,
    config: Config,
    device: torch.device,
    world: World,
    watch: Callable[..., None],
) -> RankResult:
    """This worker's part of the work; `watch` is called on the way, and may end it."""
    nll, words = total_nll(model, dev.split, device, world, watch)
    if not config.train.validate_bleu:
        return RankResult(nll, words, (), ())
    lines = config.train.validate_lines or len(dev.lines)
    # half-trained models may never end, and wider beams would only make them slower
    decode = config.decode.model_copy(
        update={"beam": config.train.validate_beam, "nbest": 1, "retry": False}
    )
    translator = Translator([model], dev.source, dev.target, decode)
    outputs = translator.translate(world.shard(dev.lines[:lines]), on_step=watch)
    shown = zip(outputs, world.shard(dev.references[:lines][:SAMPLES]), strict=False)
    texts = tuple(output.text for output in outputs)
    return RankResult(nll, words, texts, tuple(make_sample(*pair) for pair in shown))


@torch.inference_mode()
def total_nll(
    model: Seq2Seq, split: Split, device: torch.device, world: World, watch: Callable[..., None]
) -> tuple[float, int]:
    """Negative log-likelihood and target tokens of this worker's batches."""
    total, words = 0.0, 0
    for indices in world.shard(list(evaluation_batches(split, batch_size=64))):
        watch()
        batch = read_batch(split, indices).to(device)
        features = model(batch).features
        _, nll = token_loss(model.readout, features, batch.target, batch.target_mask, 0.0)
        total += nll.item()
        words += batch.target_tokens
    return total, words


def make_sample(output: Translation, reference: str) -> Sample:
    """A line to look at."""
    links = format_links(links_from_attention(output.alignment))
    return Sample(" ".join(output.source_tokens), " ".join(output.tokens), reference, links)
