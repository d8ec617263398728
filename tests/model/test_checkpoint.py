"""A model directory: what goes in comes out, and what is not whole or not ours is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from covnmt.base.config import Config
from covnmt.base.errors import UserError
from covnmt.base.files import lock_directory
from covnmt.decoding.onnx.export import export_model
from covnmt.model.checkpoint import (
    BEST_WEIGHTS,
    average_checkpoints,
    load_tensors,
    load_weights,
    named_weights,
    new_model,
    save_tensors,
    write_last_weights,
)
from covnmt.model.directory import load_config
from covnmt.text.codec import copy_codecs
from tests.model.small import load_model


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def random_bytes(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(10_000))


def json_instead(path: Path) -> None:
    path.write_text(json.dumps({"weights": [1, 2, 3]}), "utf-8")


def other_tensors(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path)


def metadata_of_another_kind(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path, metadata={"about": "[1]"})


def metadata_without_end(path: Path) -> None:
    save_file({"a": torch.ones(2)}, path, metadata={"about": "[" * 100_000})


def renamed_tensor(path: Path) -> None:
    tensors, about = load_tensors(path)
    tensors["readout.Q"] = tensors.pop("readout.b")
    save_tensors(path, tensors, about)


def reshaped_tensor(path: Path) -> None:
    tensors, about = load_tensors(path)
    tensors["readout.b"] = tensors["readout.b"][:-1]
    save_tensors(path, tensors, about)


def missing(path: Path) -> None:
    path.unlink()


DAMAGE: dict[Callable[[Path], None], str] = {
    cut: "damaged or not a safetensors file",
    cut_in_the_header: "damaged or not a safetensors file",
    empty: "damaged or not a safetensors file",
    random_bytes: "damaged or not a safetensors file",
    json_instead: "damaged or not a safetensors file",
    metadata_without_end: "damaged or not a safetensors file",
    metadata_of_another_kind: "damaged or not a safetensors file",
    other_tensors: "these weights are of another model: a is unknown",
    renamed_tensor: "readout.Q is unknown; readout.b is missing",
    reshaped_tensor: r"readout.b is \[",
    missing: "no such file",
}

# Contents of config.json that are refused, and the reason in the message.
FOREIGN: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "config.json: not valid JSON"),
    "a list": ("[1, 2]", "not made by `covnmt train`"),
    "another program's": ('{"hidden_size": 768}', "not made by `covnmt train`"),
    "format is text": ('{"format": "1", "words": {}}', "not made by `covnmt train`"),
    "newer": ('{"format": 99, "anything": 1}', r"newer covnmt \(format 99\); please upgrade"),
    "no words": ('{"format": 1}', "must hold the sizes"),
    "too many": (
        '{"format": 1, "words": {"source": 5, "target": 1000000001}}',
        "must hold the sizes",
    ),
    "no number": ('{"format": 1, "words": {"source": 5, "target": true}}', "must hold the sizes"),
    "one side": ('{"format": 1, "words": {"source": 5}}', "must hold the sizes"),
    "too wide": (
        '{"format": 1, "words": {"source": 5, "target": 5}, "model": {"hidden": 1000002}}',
        "model.hidden: Input should be less than or equal to 1000000, not 1000002",
    ),
    "unknown key": (
        '{"format": 1, "words": {"source": 5, "target": 5}, "model": {"hiden": 3}}',
        "unknown key model.hiden; did you mean model.hidden?",
    ),
}


@pytest.fixture
def model_copy(tiny_model: Path, tmp_path: Path) -> Path:
    """A model directory that a test may damage."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_tensors_and_metadata_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.safetensors"
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3), "c": torch.zeros(0)}
    about = {"update": 3, "best": 0.1 + 0.2, "text": "ä\u2028"}
    save_tensors(path, tensors, about)
    loaded, metadata = load_tensors(path)
    assert metadata == about
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


def test_model_loads_as_it_was_saved(tiny_model: Path, tiny_config: Config) -> None:
    model, config = load_model(tiny_model)
    assert config == tiny_config
    assert not model.training
    weights, _ = load_tensors(tiny_model / BEST_WEIGHTS)
    assert all(torch.equal(weight, weights[name]) for name, weight in named_weights(model).items())


def test_new_model_depends_only_on_the_seed(tiny_config: Config) -> None:
    first = named_weights(new_model(tiny_config, 9, 9))
    torch.rand(5)
    again = named_weights(new_model(tiny_config, 9, 9))
    assert all(torch.equal(first[name], again[name]) for name in first)
    train = tiny_config.train.model_copy(update={"seed": 2})
    other = named_weights(new_model(tiny_config.model_copy(update={"train": train}), 9, 9))
    assert not torch.equal(first["source.E"], other["source.E"])


def test_shared_matrix_is_saved_once_and_stays_shared(tiny_config: Config, tmp_path: Path) -> None:
    tied = tiny_config.model.model_copy(update={"tie_target": True})
    config = tiny_config.model_copy(update={"model": tied})
    model = new_model(config, 9, 9)
    save_tensors(tmp_path / BEST_WEIGHTS, named_weights(model), {})
    with safe_open(tmp_path / BEST_WEIGHTS, "pt") as stream:
        names = set(stream.keys())
    assert ("readout.W_2" in names) + ("target.E" in names) == 1
    other = new_model(config, 9, 9)
    with torch.no_grad():
        other.target.E.zero_()
    load_weights(other, load_tensors(tmp_path / BEST_WEIGHTS)[0], tmp_path / BEST_WEIGHTS)
    assert other.readout.W_2 is other.target.E
    assert torch.equal(other.target.E, model.target.E)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_weights_are_refused(damage: Callable[[Path], None], model_copy: Path) -> None:
    damage(model_copy / BEST_WEIGHTS)
    with pytest.raises(UserError, match=DAMAGE[damage]) as caught:
        load_model(model_copy)
    assert str(caught.value).startswith(str(model_copy / BEST_WEIGHTS))


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign_config_is_refused(case: str, model_copy: Path) -> None:
    text, message = FOREIGN[case]
    (model_copy / "config.json").write_text(text, "utf-8")
    with pytest.raises(UserError, match=message) as caught:
        load_config(model_copy)
    assert str(caught.value).startswith(str(model_copy / "config.json"))


def test_config_with_other_vocabulary_size_is_refused(model_copy: Path) -> None:
    """However large: the message is not about memory."""
    path = model_copy / "config.json"
    for words in (7, 10**9):
        tree = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(tree | {"words": tree["words"] | {"target": words}}), "utf-8")
        with pytest.raises(UserError, match=rf"^{path}: damaged: words gives {words} for target"):
            load_model(model_copy)


def test_directory_without_config_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(UserError, match="not a model directory"):
            load_model(path)


def without_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")


def with_lines_swapped(path: Path) -> None:
    first, second, *rest = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), "utf-8")


def in_lower_case(path: Path) -> None:
    settings = path.with_suffix(".json")
    settings.write_text(settings.read_text("utf-8").replace("false", "true"), "utf-8")


@pytest.mark.parametrize("edit", [without_last_line, with_lines_swapped, in_lower_case])
@pytest.mark.parametrize("side", ["source", "target"])
def test_vocabulary_or_tokenizer_of_another_model_is_refused(
    side: str, edit: Callable[[Path], None], model_copy: Path, tiny_corpus: Path
) -> None:
    edit(model_copy / f"{side}.vocab")
    with pytest.raises(UserError, match=f"^{model_copy}: .*not those.*from the data directory"):
        load_model(model_copy)
    copy_codecs(tiny_corpus, model_copy)
    load_model(model_copy)


def test_average_is_the_mean_of_kept_checkpoints(tiny_model: Path, tmp_path: Path) -> None:
    kept = sorted((tiny_model / "recent").iterdir())
    assert [path.stem for path in kept] == ["00000030", "00000040"]
    assert average_checkpoints(tiny_model, tmp_path / "mean", 2) == ["00000030", "00000040"]
    model, _ = load_model(tmp_path / "mean")
    first, second = (load_tensors(path)[0] for path in kept)
    for name, weight in named_weights(model).items():
        mean = (first[name].double().numpy() + second[name].double().numpy()) / 2
        np.testing.assert_allclose(weight.numpy(), mean, rtol=1e-6, err_msg=name)
    assert load_tensors(tmp_path / "mean" / BEST_WEIGHTS)[1]["averaged"] == ["00000030", "00000040"]


def exported(run: Path, target: Path) -> None:
    export_model(run, target, "fp32")


def mean_of_one(run: Path, target: Path) -> None:
    assert average_checkpoints(run, target, 1) == ["00000040"]


@pytest.mark.parametrize("write", [mean_of_one, write_last_weights])
def test_last_weights_are_those_of_the_last_checkpoint(
    write: Callable[[Path, Path], None], tiny_model: Path, tmp_path: Path
) -> None:
    write(tiny_model, tmp_path / "last")
    model, _ = load_model(tmp_path / "last")
    weights, _ = load_tensors(tiny_model / "recent" / "00000040.safetensors")
    assert all(torch.equal(weight, weights[name]) for name, weight in named_weights(model).items())


@pytest.mark.parametrize(
    ("last", "message"),
    [(3, r"--last 2\), or train with train.keep=3"), (0, "one or more"), (-1, "one or more")],
)
def test_average_of_too_many_or_no_checkpoints_is_refused(
    last: int, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        average_checkpoints(tiny_model, tmp_path / "mean", last)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("damage", [cut, reshaped_tensor, renamed_tensor])
def test_average_of_damaged_weights_is_refused(
    damage: Callable[[Path], None], model_copy: Path, tmp_path: Path
) -> None:
    damage(model_copy / "recent" / "00000040.safetensors")
    with pytest.raises(UserError, match=r"00000040\.safetensors: (these weights are of|damaged)"):
        average_checkpoints(model_copy, tmp_path / "mean", 2)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("write", [mean_of_one, write_last_weights, exported])
def test_run_directory_is_not_overwritten(
    write: Callable[[Path, Path], None], tiny_model: Path, tmp_path: Path
) -> None:
    """A run without a checkpoint has nothing but its lock."""
    run = tmp_path / "run"
    with lock_directory(run):
        (tmp_path / "link").symlink_to(run)
        for name in ("run", "link"):
            with pytest.raises(UserError, match=f"{name}: another covnmt command is writing"):
                write(tiny_model, tmp_path / name)
        assert not list(run.iterdir())
        write(tiny_model, tmp_path / "other")
    write(tiny_model, run)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "last.safetensors", "recent/00000040.safetensors"]
)
def test_every_flipped_bit_of_weights_is_refused(model_copy: Path, name: str) -> None:
    path = model_copy / name
    content = path.read_bytes()
    load_tensors(path)
    random = np.random.default_rng(1)
    in_header = random.integers(8 * 8, 8 * 1000, 12)
    for bit in [*in_header, *random.integers(8 * 8, 8 * len(content), 12)]:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(UserError, match=rf"{path.name}: damaged"):
            load_tensors(path)


@pytest.mark.parametrize("write", [mean_of_one, write_last_weights])
def test_written_model_directories_carry_a_digest(
    write: Callable[[Path, Path], None], tiny_model: Path, tmp_path: Path
) -> None:
    write(tiny_model, tmp_path / "made")
    path = tmp_path / "made" / BEST_WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="its checksum has changed"):
        load_tensors(path)


def test_weights_without_digest_are_read(tmp_path: Path) -> None:
    """As older versions wrote them; a tensor may be empty, a scalar, or of any type."""
    tensors = {
        "a": torch.ones(2, 3),
        "b": torch.tensor(1, dtype=torch.uint8),
        "c": torch.zeros(0),
        "d": torch.ones(3, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "old", metadata={"about": '{"update": 3}'})
    save_tensors(tmp_path / "new", tensors, {"update": 3})
    for name in ("old", "new"):
        read, metadata = load_tensors(tmp_path / name)
        assert metadata == {"update": 3}
        assert all(torch.equal(read[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("use", [load_model, exported, mean_of_one, write_last_weights])
def test_weights_that_are_not_finite_are_refused(
    use: Callable[..., object], value: float, model_copy: Path, tmp_path: Path
) -> None:
    for name in (BEST_WEIGHTS, "last.safetensors", "recent/00000040.safetensors"):
        tensors, metadata = load_tensors(model_copy / name)
        weight = next(n for n in tensors if n.endswith("readout.b"))
        tensors[weight][0] = value
        save_tensors(model_copy / name, tensors, metadata)
    arguments = (model_copy,) if use is load_model else (model_copy, tmp_path / "out")
    with pytest.raises(UserError, match=r"readout\.b has values that are infinite or NaN"):
        use(*arguments)
    assert not (tmp_path / "out").exists()


def test_large_finite_weights_are_read(tmp_path: Path) -> None:
    """Their sum is infinite."""
    save_tensors(tmp_path / "large", {"a": torch.full((9,), 3e38)}, {})
    assert load_tensors(tmp_path / "large")[0]["a"].isfinite().all()
