"""Other toolkits to train and decode with: OpenNMT-py and Joey NMT, if they can be imported.

    pip install --no-deps OpenNMT-py==3.5.1 pyonmttok configargparse pyyaml
    pip install --no-deps joeynmt==2.3.0 'importlib_metadata<9' zipp subword-nmt pyyaml
    python benchmarks/train.py --peer opennmt-py joeynmt

(--no-deps, since both ask for other versions of torch or protobuf, and run with covnmt's.)

Their model, loss and beam search, as close to the paper's size as their options allow; only token
ids, mixed precision, clipping to norm 1 and PyTorch's Adam are the same as for covnmt. `note` says
what differs from the paper's model, and goes into the result rows.
"""

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import MagicMock

import torch
from torch import Tensor

from covnmt.base.errors import UserError

# Both toolkits number their special symbols in this order.
UNK, PAD, START, END, FIRST_WORD = range(5)


@dataclass(frozen=True)
class Size:
    """Vocabulary, embeddings and recurrent states; both languages alike."""

    words: int = 30_001
    embedding: int = 620
    hidden: int = 1000


class Toolkit(Protocol):
    """The parts of a toolkit that are measured."""

    model: torch.nn.Module
    note: str

    def batch(self, source: Tensor, target: Tensor) -> Any:
        """Put token ids without padding, [B, J] and [B, 1 + I], into the toolkit's container."""

    def loss(self, batch: Any) -> Tensor:
        """Return the toolkit's loss per target token."""

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        """Return the best hypothesis of each row, on the CPU.

        No hypothesis may end before `steps` tokens, so that the work is the same.
        """


def stand_in(*modules: str) -> None:
    """Replace modules that a toolkit imports but that no benchmark uses."""
    for name in modules:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = MagicMock()


class OpenNMT:
    """OpenNMT-py: bidirectional GRU, input feeding, additive attention, coverage switched on."""

    note = (
        "half the hidden size in each encoder direction; input feeding; full-rank output layer; "
        "the coverage weight gets no gradient"
    )

    def __init__(self, size: Size) -> None:
        # Only its text transforms need them.
        stand_in("ahocorasick", "fasttext", "rapidfuzz", "spacy")
        builder, losses = import_module("onmt.model_builder"), import_module("onmt.utils.loss")
        self.translate = import_module("onmt.translate")
        options = self.options(size)
        words = [f"w{number}" for number in range(FIRST_WORD, size.words)]
        vocabulary = import_module("pyonmttok").build_vocab_from_tokens(
            words, special_tokens=["<unk>", "<blank>", "<s>", "</s>"]
        )
        self.vocabularies = {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": "<s>"}
        self.model = builder.build_model(options, options, self.vocabularies, None, -1)
        self.criterion = losses.LossCompute.from_opts(options, self.model, vocabulary)

    def options(self, size: Size) -> Any:
        """Return its training options; the two required options about data are not read."""
        parsing = import_module("onmt.utils.parse").ArgumentParser
        parser = parsing()
        import_module("onmt.opts").train_opts(parser)
        chosen = "-data {} -src_vocab none -encoder_type brnn -decoder_type rnn -rnn_type GRU"
        chosen += " -layers 1 -global_attention mlp -coverage_attn -dropout 0"
        chosen += f" -word_vec_size {size.embedding} -hidden_size {size.hidden}"
        options = parser.parse_args(chosen.split())
        parsing.update_model_opts(options)
        parsing.validate_model_opts(options)
        return options

    def batch(self, source: Tensor, target: Tensor) -> Any:
        return {"src": source[..., None], "srclen": lengths(source), "tgt": target[..., None]}

    def loss(self, batch: Any) -> Tensor:
        output, attention = self.model(batch["src"], batch["tgt"], batch["srclen"])
        total, _ = self.criterion(batch, output, attention)
        normalised: Tensor = total / batch["tgt"][:, 1:].numel()
        return normalised

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        scorer = self.translate.GNMTGlobalScorer(0.0, 0.0, "none", "none")
        translator = self.translate.Translator(
            self.model,
            self.vocabularies,
            beam_size=beam,
            min_length=steps,
            max_length=steps,
            max_length_ratio=0,
            global_scorer=scorer,
        )
        batch = {"src": source[..., None], "srclen": lengths(source)}
        results = translator.translate_batch(batch, attn_debug=False)
        return [best[0].tolist() for best in results["predictions"]]


class Joey:
    """Joey NMT: bidirectional GRU, input feeding, additive attention; it has no coverage."""

    note = "input feeding; full-rank output layer; no coverage"

    def __init__(self, size: Size) -> None:
        words = joey_vocabulary(size.words)
        side = {
            "type": "recurrent",
            "rnn_type": "gru",
            "embeddings": {"embedding_dim": size.embedding},
            "hidden_size": size.hidden,
            "num_layers": 1,
        }
        config = {
            "encoder": {**side, "bidirectional": True},
            "decoder": {**side, "attention": "bahdanau", "init_hidden": "bridge"},
        }
        self.model = import_module("joeynmt.model").build_model(config, words, words)
        self.model.loss_function = ("crossentropy", 0.0)
        self.beam_search = import_module("joeynmt.search").search

    def batch(self, source: Tensor, target: Tensor | None) -> Any:
        return import_module("joeynmt.batch").Batch(
            src=source,
            src_length=lengths(source),
            src_prompt_mask=None,
            trg=target,
            trg_prompt_mask=None,
            indices=torch.arange(len(source)),
            device=source.device,
            pad_index=PAD,
            eos_index=END,
        )

    def loss(self, batch: Any) -> Tensor:
        total, *_ = self.model(return_type="loss", **vars(batch))
        normalised: Tensor = batch.normalize(total, "tokens")
        return normalised

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        kind = source.device.type
        # Its search switches mixed precision off by default.
        autocast = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
        }
        results, _, _ = self.beam_search(
            self.model,
            self.batch(source, None),
            min_output_length=steps,
            max_output_length=steps,
            beam_size=beam,
            beam_alpha=-1,
            autocast=autocast,
        )
        hypotheses: list[list[int]] = results.tolist()
        return hypotheses


@functools.cache
def joey_vocabulary(words: int) -> Any:
    """A vocabulary of Joey NMT; kept, since building a large one takes it seconds."""
    symbols = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>", "sep": None}
    numbers: dict[str, Any] = {f"{name}_id": number for number, name in enumerate(symbols)}
    tokens = {f"{name}_token": token for name, token in symbols.items()}
    special = SimpleNamespace(**numbers, **tokens, lang_tags=[])
    names = [f"w{number}" for number in range(FIRST_WORD, words)]
    return import_module("joeynmt.vocabulary").Vocabulary(names, special)


# By the name each is published under.
TOOLKITS: dict[str, Callable[[Size], Toolkit]] = {"opennmt-py": OpenNMT, "joeynmt": Joey}
HELP = f"other toolkits to measure: {', '.join(TOOLKITS)}"


class Peer:
    """A toolkit's model on a device, to train and decode with."""

    def __init__(self, toolkit: Toolkit, device: torch.device, precision: str) -> None:
        self.toolkit, self.device, self.precision = toolkit, device, precision
        self.parameters = list(toolkit.model.to(device).parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-4)

    def autocast(self) -> torch.autocast:
        """Return the same mixed precision as for covnmt."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def batch(self, source: Tensor, target: Tensor) -> Any:
        """Convert token ids [B, J] and [B, I], end symbols included, for the toolkit."""
        start, end = (torch.full_like(target[:, :1], symbol) for symbol in (START, END))
        target = torch.cat([start, words_only(target[:, :-1]), end], dim=1)  # [B, 1 + I]
        return self.toolkit.batch(words_only(source), target)

    def train_step(self, batch: Any) -> Tensor:
        """Run forward, backward, clipping and optimizer; return the loss per target token."""
        self.toolkit.model.train()
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.toolkit.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()

    @torch.inference_mode()
    def decode(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        """Return hypotheses of `steps` tokens."""
        self.toolkit.model.eval()
        with self.autocast():
            return self.toolkit.search(words_only(source), beam, steps)


def lengths(rows: Tensor) -> Tensor:
    """Return the length of each row, on the same device."""
    return torch.full_like(rows[:, 0], rows.shape[1])


def words_only(ids: Tensor) -> Tensor:
    """Replace special symbols among random token ids."""
    return ids.clamp(min=FIRST_WORD)


def build(name: str, device: torch.device, precision: str, size: Size | None = None) -> Peer:
    """Build a toolkit's model with random weights, by default of the paper's size."""
    torch.manual_seed(1)
    try:
        toolkit = TOOLKITS[name](size or Size())
    except ImportError as error:
        raise UserError(
            f"{name} cannot be imported ({error}): install it with what it imports, as "
            "benchmarks/peers.py says, or leave it out"
        ) from None
    return Peer(toolkit, device, precision)


def describe(name: str, peer: Peer) -> dict[str, Any]:
    """Return version, size and differences of a toolkit, for a result row."""
    count = sum(parameter.numel() for parameter in peer.parameters)
    version = metadata.version(name)
    return {"version": version, "parameters": count, "note": peer.toolkit.note}


def missing(name: str) -> str:
    """Return why a toolkit cannot be used here, after building a tiny model; empty if it can."""
    try:
        build(name, torch.device("cpu"), "fp32", Size(words=8, embedding=2, hidden=2))
    except UserError as error:
        return str(error)
    return ""


def importable(name: str) -> str:
    """Check a toolkit given on the command line before anything is measured."""
    if name not in TOOLKITS:
        raise argparse.ArgumentTypeError(
            f"unknown toolkit {name!r}: choose from {', '.join(TOOLKITS)}"
        )
    if why := missing(name):
        raise argparse.ArgumentTypeError(why)
    return name
