"""How good a model is while it trains: loss and BLEU on the dev set, and a look at a few lines."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from covnmt.config import Config
from covnmt.data import eval_batches, read_batch
from covnmt.distributed import ALONE, World
from covnmt.loss import token_loss
from covnmt.metrics.alignment import format_links, links_from_attention
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.seq2seq import Seq2Seq
from covnmt.text.corpus import Corpus, Split
from covnmt.translate import Translation, Translator

SAMPLES = 3


@dataclass(frozen=True)
class Sample:
    """One dev line and what the model made of it."""

    source: str
    output: str
    reference: str
    links: str  # Pharaoh, each output token to the source token it looked at most


@dataclass(frozen=True)
class Validation:
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


def validate(
    model: Seq2Seq,
    corpus: Corpus,
    config: Config,
    device: torch.device,
    world: World = ALONE,
) -> Validation:
    """Score the model on the corpus's dev set; several workers share the work."""
    dev = corpus.split("dev")
    model.eval()
    loss = mean_loss(model, dev, device, world)
    if not config.train.validate_bleu:
        return Validation(loss, None, ())
    lines = config.train.validate_lines or len(dev)
    references = dev.target_text()[:lines]
    # half-trained models may never end, and wider beams would only make them slower
    decode = config.decode.model_copy(
        update={"beam": config.train.validate_beam, "nbest": 1, "retry": False}
    )
    translator = Translator([model], corpus.codec("source"), corpus.codec("target"), decode)
    outputs = translator.translate(world.mine(dev.source_text()[:lines]))
    texts = world.whole([output.text for output in outputs])
    samples = zip(outputs, world.mine(references[:SAMPLES]), strict=False)
    shown = world.whole([sample(*pair) for pair in samples])
    return Validation(loss, paper_bleu(texts, [references]).value, tuple(shown))


@torch.inference_mode()
def mean_loss(model: Seq2Seq, split: Split, device: torch.device, world: World = ALONE) -> float:
    """Negative log-likelihood per target token."""
    total, words = 0.0, 0
    for indices in world.mine(list(eval_batches(split, batch_size=64))):
        batch = read_batch(split, indices).to(device)
        features = model(batch).features
        _, nll = token_loss(model.readout, features, batch.target, batch.target_mask, 0.0)
        total += nll.item()
        words += batch.target_words
    totals, counts = zip(*world.gather((total, words)), strict=True)
    return float(sum(totals) / sum(counts))


def sample(output: Translation, reference: str) -> Sample:
    """A line to look at."""
    links = format_links(links_from_attention(output.alignment))
    return Sample(" ".join(output.source_tokens), " ".join(output.tokens), reference, links)
