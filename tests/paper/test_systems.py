"""Overrides that make each system from the shared recipe."""

from dataclasses import replace
from pathlib import Path

import pytest

from covnmt.base.config import PAPER_SYSTEMS
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
    assert config.data.directory == plan.prepared
    if system in PAPER_SYSTEMS:
        assert config.model.coverage == PAPER_SYSTEMS[system]
        shared = load_recipe(find_recipe(KFTT.recipe)).model
        assert config.model.model_copy(update={"coverage": shared.coverage}) == shared
    else:
        modern = replace(plan, experiment=find_experiment("kftt", "modern"))
        base = VARIANTS[system].base
        pairs = [
            [
                (
                    job_config(p, ExperimentJob(name, 5), 1.5),
                    should_tune_length_penalty(p.experiment, name),
                )
                for name in (system, base)
            ]
            for p in (plan, modern)
        ]
        assert any(one != other for one, other in pairs)


def test_recipes_have_the_sizes_of_the_paper() -> None:
    for corpus in ("kftt", "twlaw"):
        model = load_recipe(find_recipe(find_experiment(corpus).recipe)).model
        assert (model.embedding, model.hidden, model.rank) == (620, 1000, 620)
