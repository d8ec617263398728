"""Other toolkits to decode with: eole and fairseq, if they are installed.

    pip install --no-deps eole==0.6.4 pyonmttok configargparse subword-nmt
    pip install --no-deps fairseq==0.12.2 omegaconf==2.0.6 hydra-core==1.0.7 \\
        antlr4-python3-runtime==4.8 bitarray cffi
    python benchmarks/cpu.py --peer eole fairseq

(--no-deps, since they ask for packages that decoding does not need, or for other versions. pip 24.1
and later refuse the metadata of omegaconf 2.0.6; 23.2 accepts it.)

Their model and beam search, as close to the requested size as their options allow.
"""

import argparse
import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol
from unittest.mock import patch

import peers
import torch
from peers import FIRST_WORD, Size, lengths, stand_in
from torch import Tensor


class Searcher(Protocol):
    """The parts of a toolkit that are measured."""

    model: torch.nn.Module
    note: str

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        """Return the best hypothesis of each row; all take `steps` steps."""


class Eole:
    """eole, the successor of OpenNMT-py: the same network, coverage switched on."""

    note = "half the hidden size in each encoder direction; input feeding; full-rank output layer"

    def __init__(self, size: Size) -> None:
        # Only text transforms and downloads need them.
        stand_in("ahocorasick", "fasttext", "rapidfuzz", "spacy", "huggingface_hub")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kernels for GPUs
            models = import_module("eole.models.model")
            self.config = import_module("eole.config.run").PredictConfig
            self.predict = import_module("eole.predict")
        self.shape = import_module("eole.config.models").CustomModelConfig(**self.options(size))
        words = [f"w{number}" for number in range(FIRST_WORD, size.words)]
        symbols = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>"}
        symbols["eos_token"] = "</s>"
        vocabulary = import_module("pyonmttok").build_vocab_from_tokens(
            words, special_tokens=list(symbols.values())
        )
        self.vocabularies = {"src": vocabulary, "tgt": vocabulary, "specials": symbols}
        self.vocabularies["decoder_start_token"] = "<s>"
        self.model = models.EncoderDecoderModel.build(
            self.shape, self.vocabularies, self.settings(beam=1, steps=1)
        )
        for parameter in self.model.parameters():  # it leaves them uninitialized
            torch.nn.init.uniform_(parameter, -0.1, 0.1)

    def options(self, size: Size) -> dict[str, Any]:
        """Return its settings of the network."""
        side = {"rnn_type": "GRU", "layers": 1, "hidden_size": size.hidden}
        attention = {"global_attention": "mlp", "coverage_attn": True}
        return {
            "encoder": {"encoder_type": "brnn", **side},
            "decoder": {"decoder_type": "rnn", **attention, **side},
            "layers": 1,
            "hidden_size": size.hidden,
            "embeddings": {"word_vec_size": size.embedding},
        }

    def settings(self, beam: int, steps: int) -> Any:
        """Return its decoding options; the required files are not read."""
        return self.config(
            model_path=["none"],
            src="none",
            model=self.shape,
            beam_size=beam,
            min_length=steps,
            max_length=steps,
            max_length_ratio=0,
            world_size=0,
            gpu_ranks=[],
        )

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        scorer = self.predict.GNMTGlobalScorer(0.0, 0.0, "none", "none")
        translator = self.predict.Translator(
            self.model,
            self.vocabularies,
            self.settings(beam, steps),
            self.shape,
            device_id=-1,
            global_scorer=scorer,
        )
        results = translator.predict_batch({"src": source, "srclen": lengths(source)}, False)
        return [best[0].tolist() for best in results["predictions"]]


class Fairseq:
    """fairseq: its only recurrent network, an LSTM with dot-product attention and no coverage."""

    note = (
        "LSTM; half the hidden size in each encoder direction; dot-product attention; no coverage"
    )

    def __init__(self, size: Size) -> None:
        with hashable_dataclasses():
            lstm = import_module("fairseq.models.lstm")
            self.generator = import_module("fairseq.sequence_generator").SequenceGenerator
            self.words = import_module("fairseq.data.dictionary").Dictionary()
        for number in range(FIRST_WORD, size.words):
            self.words.add_symbol(f"w{number}")
        n = size.hidden
        encoder = lstm.LSTMEncoder(
            self.words, size.embedding, n // 2, num_layers=1, bidirectional=True
        )
        decoder = lstm.LSTMDecoder(
            self.words, size.embedding, n, n, num_layers=1, encoder_output_units=2 * (n // 2)
        )
        self.model = lstm.LSTMModel(encoder, decoder)

    def search(self, source: Tensor, beam: int, steps: int) -> list[list[int]]:
        # its limits do not count the last step, which makes the end symbol
        search = self.generator(
            [self.model],
            self.words,
            beam_size=beam,
            max_len_b=steps - 1,
            min_len=steps - 1,
            normalize_scores=False,
        )
        sample = {"net_input": {"src_tokens": source, "src_lengths": lengths(source)}}
        return [best[0]["tokens"].tolist() for best in search.generate([self.model], sample)]


@contextmanager
def hashable_dataclasses() -> Iterator[None]:
    """Make fairseq importable in Python 3.11 and later, which require hashable defaults."""
    logging.getLogger("fairseq").setLevel(logging.ERROR)
    lenient = functools.partial(dataclasses.dataclass, unsafe_hash=True)
    with patch("dataclasses.dataclass", lenient):
        yield


SEARCHERS: dict[str, Callable[[Size], Searcher]] = {"eole": Eole, "fairseq": Fairseq}
NAMES = (*peers.TOOLKITS, *SEARCHERS)
HELP = f"other toolkits to measure: {', '.join(NAMES)}"


def build(name: str, size: Size) -> Searcher:
    """Build a toolkit's model with random weights, on the CPU."""
    torch.manual_seed(1)
    toolkits: dict[str, Callable[[Size], Searcher]] = {**peers.TOOLKITS, **SEARCHERS}
    return toolkits[name](size)


def importable(name: str) -> str:
    """Check a toolkit given on the command line, with a tiny model."""
    if name not in NAMES:
        raise argparse.ArgumentTypeError(
            f"unknown toolkit {name!r}: choose from {', '.join(NAMES)}"
        )
    try:
        build(name, Size(words=8, embedding=2, hidden=2))
    except ImportError as error:
        raise argparse.ArgumentTypeError(
            f"{name} cannot be imported ({error}): install it with what it imports, as "
            "benchmarks/peers.py and peers_search.py say, or leave it out"
        ) from None
    return name
