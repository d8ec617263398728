"""Overrides that make each system from the shared recipe."""

from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base.config import PAPER_SYSTEMS, changed_settings
from covnmt.base.recipe import find_recipe, load_recipe
from covnmt.paper.experiments import find_experiment, should_tune_length_penalty
from covnmt.paper.neural import job_config
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.systems import VARIANTS
from tests.paper.sample_results import KFTT


@pytest.mark.parametrize("system", [*PAPER_SYSTEMS, *VARIANTS])
def test_systems_differ_from_the_recipe_only_in_their_own_settings(
    system: str, tmp_path: Path
) -> None:
    plan = ExperimentPlan(KFTT, tmp_path, tmp_path)
    config = job_config(plan, ExperimentJob(system, 5), minutes=1.5)
    assert (config.train.seed, config.train.minutes) == (5, 1.5)
    is_student = config.data.directory == tmp_path / f"kftt/{system}-seed5-data"
    assert is_student or config.data.directory == plan.prepared
    if system in PAPER_SYSTEMS:
        assert config.model.coverage == PAPER_SYSTEMS[system]
        shared = load_recipe(find_recipe(KFTT.recipe)).model
        assert config.model.model_copy(update={"coverage": shared.coverage}) == shared
    else:
        scales = [
            replace(plan, experiment=find_experiment("kftt", scale))
            for scale in ("original", "modern")
        ]
        base = VARIANTS[system].base
        pairs = [
            [
                (
                    job_config(p, ExperimentJob(name, 5), 1.5),
                    should_tune_length_penalty(p.experiment, name),
                )
                for name in (system, base)
            ]
            for p in (plan, *scales)
        ]
        assert any(one != other for one, other in pairs)
        assert is_student == bool(VARIANTS[system].teacher)


@pytest.mark.parametrize("scale", ["paper", "original"])
def test_recipes_have_the_sizes_of_the_paper(scale: str) -> None:
    for corpus in ("kftt", "twlaw"):
        model = load_recipe(find_recipe(find_experiment(corpus, scale).recipe)).model
        assert (model.embedding, model.hidden, model.rank) == (620, 1000, 620)


def test_original_recipe_trains_as_the_paper_does() -> None:
    """All of docs/paper-to-code.md, sections 1.1 to 1.5, but fewer updates and bf16."""
    for corpus in ("kftt", "twlaw"):
        config = load_recipe(find_recipe(find_experiment(corpus, "original").recipe))
        train, data = config.train, config.data
        assert (data.batching, data.batch_size, data.pool, data.max_length) == ("paper", 80, 20, 80)
        assert (config.model.init, config.model.dropout, config.model.order) == ("paper", 0, "code")
        assert (train.optimizer, train.rho, train.epsilon) == ("adadelta", 0.95, 1e-6)
        assert (train.learning_rate, train.schedule, train.warmup) == (1, "constant", 0)
        assert (train.loss, train.clip, train.accumulate) == ("sum", 1, 1)
        assert (train.label_smoothing, train.weight_decay, train.ema) == (0, 0, 0)
        assert (train.validate_beam, train.validate_lines, train.select) == (10, 0, "bleu")
        assert (config.decode.beam, config.decode.length_penalty) == (10, 0)
        assert config.decode.length_rules
        assert (train.updates, train.validate_from, train.validate_every) == (75_000, 40_000, 2_000)


@pytest.mark.parametrize("system", ["baseline", "gru10"])
@pytest.mark.parametrize("ending", ["modern-init", "adamw", "token-batches", "dropout", "longer"])
def test_each_step_of_the_bridge_changes_one_thing(
    system: str, ending: str, tmp_path: Path
) -> None:
    plan = ExperimentPlan(find_experiment("kftt", "original"), tmp_path, tmp_path)
    one, other = (
        job_config(plan, ExperimentJob(name, 1), 0) for name in (system, f"{system}-{ending}")
    )
    changes = changed_settings(one, other).keys() - {"train.validate_from"}
    assert {key.split(".")[1] for key in changes} == {
        "modern-init": {"init"},
        "adamw": {"optimizer", "learning_rate", "epsilon", "warmup"},
        "token-batches": {"batching"},
        "dropout": {"dropout"},
        "longer": {"updates"},
    }[ending]
