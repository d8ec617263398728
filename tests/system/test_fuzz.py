"""Files from elsewhere, damaged at random: each reader succeeds or raises a clear error."""

import io
import json
import lzma
import shutil
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import typer

from covnmt.base.config import Config, DataConfig
from covnmt.base.errors import UserError
from covnmt.base.files import file_digest, write_lines
from covnmt.base.recipe import load_recipe
from covnmt.cli.app import app
from covnmt.data.batching import read_batch, train_batches
from covnmt.data.corpus import Corpus
from covnmt.data.download import extract_members
from covnmt.data.lexicon import Lexicon
from covnmt.decoding.onnx.export import ShortlistText, export_model
from covnmt.evaluation.alignment_files import load_matrices, read_links, save_matrices
from covnmt.evaluation.evaluate import compare
from covnmt.evaluation.human_evaluation import score_rating_sheets
from covnmt.evaluation.system_output import SystemOutput, read_outputs
from covnmt.evaluation.test_set import EvaluationSet
from covnmt.evaluation.training_curves import read_training_curves
from covnmt.inference.calibration import Calibration
from covnmt.inference.model import Model
from covnmt.inference.translate import format_translations, read_dictionary
from covnmt.model.checkpoint import DIGEST_KEY, content_digest
from covnmt.model.directory import find_model
from covnmt.paper.pack import pack_prepared_data, unpack_prepared_data
from covnmt.paper.results import Result, read_record
from covnmt.serve.settings import read_api_keys
from covnmt.text.codec import Codec
from covnmt.training.loop import train
from tests.paper.sample_results import OUTPUTS, REFERENCES, sample_content
from tests.system.fuzz import (
    Reader,
    check_reader,
    mutate_bytes,
    mutate_json,
    mutate_json_lines,
    mutate_tree,
)

SENTENCE = "der Hund"
KEY = {
    "systems": ["a", "b"],
    "items": [{"id": "1", "sentence": 1, "system": "a", "words": 3}],
}
RECIPE = """# small
extends = "modern/gru10"
[model]
hidden = 12
coverage = {kind = "gru", size = 2}
[train]
updates = 1_000
learning_rate = 1e-3
"""
SERVER_SETTINGS = """# of covnmt serve
host = "127.0.0.1"
port = 8000
allow-origin = ["https://example.org"]
grace = 5.0
"""
API_KEYS = """[one]
key = "0123456789abcdef"
rate = 5

[two]
key = "fedcba9876543210"
burst = 20
"""


def read_corpus(path: Path) -> None:
    """Read what training reads."""
    corpus = Corpus.open(path.parent)
    split = corpus.split("train")
    plan = next(train_batches(split, DataConfig(), seed=1))
    read_batch(split, plan.indices)
    dev = corpus.split("dev")
    dev.text("source")


def read_codec(path: Path) -> None:
    codec = Codec.load(path.parent, "source")
    codec.detokenize(codec.vocabulary.decode(codec.vocabulary.encode(codec.tokenize("a b"))))


def read_calibration(path: Path) -> None:
    """Read what the omission check reads."""
    Calibration.load(path.parent)
    Lexicon.load(path.with_name("lexicon.npz"))


def read_server_settings(path: Path) -> None:
    """Parse the options of `covnmt serve`, which starts no server."""
    command: Any = typer.main.get_command(app)
    try:
        command.commands["serve"].make_context("serve", ["-m", "ja-en", "--settings", str(path)])
    except typer.BadParameter as error:
        raise UserError(error.message) from None


def score_ratings(path: Path) -> None:
    score_rating_sheets(path.parent / "key.json", [path.parent / "sheet.csv"])


def translate(path: Path) -> None:
    Model.load(path.parent, device="cpu").translate([SENTENCE])


def translate_resigned(path: Path) -> None:
    """Translate with an exported model whose damage its checksums do not show."""
    manifest = path.with_name("onnx.json")
    good = manifest.read_bytes()
    content = json.loads(good)
    for name in content["files"]:
        content["files"][name] = file_digest(path.with_name(name))
    manifest.write_text(json.dumps(content))
    try:
        translate(path)
    finally:
        manifest.write_bytes(good)


def resume(path: Path) -> None:
    """Resume a finished run in a copy."""
    run = shutil.copytree(path.parent, path.parents[1] / "run")
    try:
        config = Config.model_validate_json(path.parents[1].joinpath("training.json").read_bytes())
        train(config, run, torch.device("cpu"))
    finally:
        shutil.rmtree(run)


def mutate_header(random: Random, content: bytes) -> bytes:
    """Damage the JSON header of safetensors; its length is right."""
    size = int.from_bytes(content[:8], "little")
    header = mutate_json(random, content[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def mutate_metadata(random: Random, content: bytes) -> bytes:
    """Damage the metadata of weights; the checksum is right."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = json.loads(header["__metadata__"]["about"])
    changed = mutate_tree(random, metadata)
    if not isinstance(changed, dict):
        return content
    tensors = safetensors.torch.load(content)
    changed.pop(DIGEST_KEY, None)
    changed[DIGEST_KEY] = content_digest(tensors, changed)
    return safetensors.torch.save(tensors, {"about": json.dumps(changed)})


def extract(path: Path) -> None:
    """Extract into a directory, and see that nothing is written elsewhere."""
    directory = path.parent
    out = directory / "out"
    before = sorted(directory.rglob("*"))
    out.mkdir()
    try:
        extract_members(path, {"text", "deep/text", ""}, out)
    finally:
        assert not [path for path in out.rglob("*") if path.is_symlink() or path.is_dir()]
        shutil.rmtree(out)
        for bad in directory.glob("*.bad"):  # set aside, to be downloaded again
            bad.rename(bad.with_suffix(""))
        assert sorted(directory.rglob("*")) == before


def unpack(path: Path) -> None:
    """Unpack prepared data, and see that nothing is written elsewhere."""
    directory = path.parent
    before = sorted(directory.rglob("*"))
    try:
        unpack_prepared_data(path, "kftt", directory / "new" / "data")
    finally:
        shutil.rmtree(directory / "new")
        assert sorted(directory.rglob("*")) == before


def mutate_pack(random: Random, content: bytes) -> bytes:
    """Damage the archive inside the compression: names, links, sizes, checksums."""
    if random.random() < 0.2:
        return mutate_bytes(random, content)
    archive = bytearray(lzma.decompress(content))
    block = 512 * random.randrange(len(archive) // 512)
    start, size = random.choice(((0, 100), (124, 12), (156, 1), (157, 100), (148, 8), (345, 155)))
    values = (b"../up", b"/tmp/fuzzed", b"kftt/../../up", b"77777777777", b"\x80\x7f", b"1", b"2")
    value = random.choice((*values, b"3", b"5", b"L", b"x", b"S", b"kftt/link"))[:size]
    archive[block + start : block + start + size] = value.ljust(size, b"\0")
    if random.random() < 0.8:  # a right checksum
        header = archive[block : block + 512]
        header[148:156] = b" " * 8
        archive[block + 148 : block + 156] = b"%06o\0 " % sum(header)
    return lzma.compress(bytes(archive), preset=0)


def good_archives(directory: Path) -> None:
    texts = {"text": b"a line\n" * 20, "deep/text": b"b\n", "other": b""}
    with zipfile.ZipFile(directory / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in texts.items():
            packed.writestr(name, content)
    for name, mode in (("a.tar.xz", "w:xz"), ("a.tgz", "w:gz")):
        with tarfile.open(directory / name, mode) as archive:  # type: ignore[call-overload]
            for member, content in texts.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    write_lines(directory / "a.gz", ["a line"] * 20)


@pytest.fixture(scope="module")
def files(
    tiny_model: Path,
    tiny_corpus: Path,
    tiny_config: Config,
    translator: Model,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """One good file of every kind."""
    directory = tmp_path_factory.mktemp("files")
    shutil.copytree(tiny_model, directory / "model")
    data = shutil.copytree(tiny_corpus, directory / "data")
    report = json.loads((data / "corpus.json").read_bytes())
    del report["checksums"]  # as older versions wrote it
    (data / "corpus.json").write_text(json.dumps(report))
    (directory / "training.json").write_text(tiny_config.model_dump_json())
    (directory / "subwords").mkdir()
    for path in find_model("ja-en").glob("source.*"):
        shutil.copy(path, directory / "subwords")
    write_lines(directory / "links", ["0-0 1p1 2-2", "", "0-0"])
    text = ShortlistText(*(directory / name for name in ("s", "t", "links")))
    for path in text[:2]:
        write_lines(path, ["a b c", "", "b"])
    export_model(tiny_model, directory / "exported", "int8", text)
    translations = translator.translate([SENTENCE, "", "das Haus sieht"])
    write_lines(directory / "out.jsonl", format_translations(translations, as_json=True, nbest=1))
    save_matrices(directory / "matrices.npz", np.ones((2, 2, 3), np.float32))
    write_lines(directory / "dictionary", ["Hund\tdog", "Haus\thouse"])
    (directory / "r.toml").write_text(RECIPE)
    (directory / "serve.toml").write_text(SERVER_SETTINGS)
    (directory / "keys.toml").write_text(API_KEYS)
    (directory / "check").mkdir()
    for name in ("check.json", "lexicon.npz"):
        shutil.copy(find_model("ja-en") / name, directory / "check")
    (directory / "key.json").write_text(json.dumps(KEY))
    write_lines(
        directory / "sheet.csv",
        [
            "id,source,output,adequacy,fluency,left_out,said_twice",
            "1,a b c,x,4,5,1 2,",
        ],
    )
    systems = {name: SystemOutput(lines) for name, lines in OUTPUTS.items()}
    comparison = compare(systems, EvaluationSet([REFERENCES], REFERENCES))
    result = sample_content(comparison, "gru10", 1, format=1)
    (directory / "result.json").write_text(json.dumps(result))
    pack_prepared_data(data, "kftt", directory / "pack.tar.xz")
    good_archives(directory)
    return directory


READERS = {
    "report of a corpus": Reader("data/corpus.json", mutate_json, read_corpus, 40),
    "settings of a tokenizer": Reader("data/source.json", mutate_json, read_codec),
    "vocabulary": Reader("data/source.vocab", mutate_bytes, read_codec),
    "subwords": Reader("subwords/source.spm", mutate_bytes, read_codec),
    "ids": Reader("data/train.source.ids", mutate_bytes, read_corpus),
    "offsets": Reader("data/dev.target.offsets.npy", mutate_bytes, read_corpus),
    "order": Reader("data/train.order.npy", mutate_bytes, read_corpus),
    "lines": Reader("data/dev.source.txt", mutate_bytes, read_corpus),
    "settings of a model": Reader("model/config.json", mutate_json, translate, 30),
    "weights": Reader("model/model.safetensors", mutate_bytes, translate),
    "header of weights": Reader("model/model.safetensors", mutate_header, translate, 30),
    "metadata of weights": Reader("model/model.safetensors", mutate_metadata, translate),
    "metadata of a checkpoint": Reader("model/last.safetensors", mutate_metadata, resume),
    "training log": Reader("model/log.jsonl", mutate_json_lines, resume),
    "training curves": Reader("model/log.jsonl", mutate_json_lines, read_training_curves),
    "manifest": Reader("exported/onnx.json", mutate_json, translate, 40),
    "shortlist": Reader("exported/shortlist.json", mutate_json, translate_resigned),
    "quantized weights": Reader("exported/weights.bin", mutate_bytes, translate_resigned),
    "graph": Reader("exported/step.onnx", mutate_bytes, translate_resigned),
    "outputs": Reader("out.jsonl", mutate_json_lines, read_outputs, 40),
    "links": Reader("links", mutate_bytes, read_links, 40),
    "matrices": Reader("matrices.npz", mutate_bytes, load_matrices, 40),
    "dictionary": Reader("dictionary", mutate_bytes, read_dictionary),
    "recipe": Reader("r.toml", mutate_bytes, load_recipe, 40),
    "settings of the server": Reader("serve.toml", mutate_bytes, read_server_settings, 40),
    "API keys": Reader("keys.toml", mutate_bytes, read_api_keys, 40),
    "calibration": Reader("check/check.json", mutate_json, read_calibration, 40),
    "lexicon": Reader("check/lexicon.npz", mutate_bytes, read_calibration),
    "key of ratings": Reader("key.json", mutate_json, score_ratings, 40),
    "ratings": Reader("sheet.csv", mutate_bytes, score_ratings, 40),
    "result": Reader(
        "result.json", mutate_json, partial(read_record, Result, system="gru10", seed=1), 40
    ),
    "pack": Reader("pack.tar.xz", mutate_pack, unpack, 30),
    "zip": Reader("a.zip", mutate_bytes, extract, 30),
    "tar.xz": Reader("a.tar.xz", mutate_bytes, extract, 30),
    "tgz": Reader("a.tgz", mutate_bytes, extract, 30),
    "gz": Reader("a.gz", mutate_bytes, extract, 30),
    "members of an archive": Reader("a.tar.xz", mutate_pack, extract, 30),
}


@pytest.mark.parametrize("name", READERS)
def test_damaged_file_is_read_or_refused(name: str, files: Path) -> None:
    check_reader(READERS[name], files)
