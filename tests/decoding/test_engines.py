"""Opening model directories: default threads."""

from pathlib import Path

import pytest

from covnmt.decoding.engines import load_networks
from covnmt.decoding.onnx.export import export_model
from covnmt.decoding.onnx.runtime import OnnxModel
from covnmt.model.directory import load_config


@pytest.mark.parametrize(("asked", "used"), [(0, 1), (1, 1), (2, 2)])
def test_exported_model_uses_one_thread_by_default(
    asked: int, used: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covnmt.decoding.engines.available_cpus", lambda: 2)
    export_model(tiny_model, tmp_path, "fp32")
    [model] = load_networks([tmp_path], [load_config(tmp_path)], "auto", asked)
    assert isinstance(model, OnnxModel)
    for graph in (model.encoder, model.steps):
        assert graph.get_session_options().intra_op_num_threads == used


def test_exported_model_uses_no_more_threads_than_cpus(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for each other busily: a thousand on two cores got nowhere."""
    monkeypatch.setattr("covnmt.decoding.engines.available_cpus", lambda: 3)
    export_model(tiny_model, tmp_path, "fp32")
    [model] = load_networks([tmp_path], [load_config(tmp_path)], "auto", 1000)
    assert isinstance(model, OnnxModel)
    assert model.steps.get_session_options().intra_op_num_threads == 3
