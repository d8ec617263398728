"""Measure a training at every validation, and the mean of its last weights at its end.

With constant steps single checkpoints differ by more than systems do, so one of them says little.
What is measured is written at once, as a partial result: a machine that is lost takes little along.
The training itself is not changed by any of this.
"""

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from covnmt.base.arrays import FloatArray
from covnmt.base.config import DecodeConfig
from covnmt.base.provenance import collect_provenance
from covnmt.data.corpus import Corpus
from covnmt.inference.model import Model
from covnmt.metrics.adequacy import drop_score, rep_score, repeated_ngram_rate
from covnmt.metrics.alignment import Links, aer, links_from_attention, saer
from covnmt.metrics.bleu import paper_bleu
from covnmt.model.checkpoint import BEST_WEIGHTS, average_checkpoints, named_weights
from covnmt.paper.measure import GoldPairs, NeuralSystem
from covnmt.paper.plan import ExperimentJob, ExperimentPlan
from covnmt.paper.results import (
    CheckpointScores,
    PartialResult,
    partial_result_path,
    read_record,
    write_record,
)
from covnmt.training.state import TrainingRun, save_recent
from covnmt.training.validation import ValidationResult

CHECKPOINT_SCORES = "checkpoints.json"  # in the run directory; the partial result is a copy
AVERAGED = "averaged"  # model directory inside that of the run
RECENT = "recent"


class CheckpointMeasurement:
    """Measures the model after every validation, and keeps its weights; see `train`."""

    def __init__(self, plan: ExperimentPlan, job: ExperimentJob, decode: DecodeConfig) -> None:
        """Decode with `decode`, but for one translation of a line and no retries."""
        self.plan, self.job = plan, job
        # a half-trained model may never end a sentence; retrying with wider beams would take long
        self.decode = decode.model_copy(update={"nbest": 1, "retry": False})
        self.provenance = collect_provenance()
        self.corpus, self.gold = Corpus.open(plan.prepared), GoldPairs.read(plan.prepared)

    def __call__(self, run: TrainingRun, validation: ValidationResult) -> None:
        update, job = run.counters.update, self.job
        save_recent(run, named_weights(run.model), self.plan.experiment.checkpoints)
        # a run that was killed repeats what came after its last checkpoint
        before = [s for s in read_checkpoint_scores(run.directory, job) if s.update < update]
        result = PartialResult(
            experiment=self.plan.experiment.name,
            system=job.system,
            seed=job.seed,
            checkpoints=[*before, self.measure(run, validation)],
            **self.provenance,
        )
        published = partial_result_path(self.plan.result_directory, job.system, job.seed)
        for path in (run.directory / CHECKPOINT_SCORES, published):
            write_record(path, result)

    def measure(self, run: TrainingRun, validation: ValidationResult) -> CheckpointScores:
        """Translate the test set, and force-decode it and the gold pairs."""
        model = Model([run.model], run.dev.source, run.dev.target, self.decode)
        system = NeuralSystem(model, self.decode)
        translations = model.translate(self.test_source)
        of_gold, of_test = system.align(self.gold, self.corpus.split("test"), translations)
        bleu = paper_bleu([t.text for t in translations], [self.test_references])
        forced = of_gold.reference_attention or []
        outputs = [t.tokens for t in translations]
        assert of_test is not None
        return CheckpointScores(
            update=run.counters.update,
            dev_bleu=round(validation.bleu or 0.0, 3),
            bleu=round(bleu.value, 3),
            length_ratio=round(bleu.details["length_ratio"], 4),
            aer=round(100 * aer(_links(forced), self.gold.links), 3) if forced else None,
            saer=round(100 * saer(forced, self.gold.links), 3) if forced else None,
            drop=round(
                drop_score(_links(of_test.attention), _links(of_test.reference_attention)), 3
            ),
            rep=round(rep_score(outputs, self.test_tokens), 3),
            repeated_4grams=round(repeated_ngram_rate(outputs), 3),
        )

    @cached_property
    def test_source(self) -> list[str]:
        return self.corpus.split("test").text("source")

    @cached_property
    def test_references(self) -> list[str]:
        return self.corpus.split("test").text("target")

    @cached_property
    def test_tokens(self) -> list[list[str]]:
        tokenize = self.corpus.codec("target").tokenize
        return [list(tokenize(line)) for line in self.test_references]


def _links(attention: Sequence[FloatArray] | None) -> list[Links]:
    return [links_from_attention(matrix) for matrix in attention or ()]


def read_checkpoint_scores(run: Path, job: ExperimentJob) -> list[CheckpointScores]:
    """Read what has been measured of the checkpoints of a run."""
    path = run / CHECKPOINT_SCORES
    return (
        read_record(PartialResult, path, job.system, job.seed).checkpoints if path.exists() else []
    )


def average_last_weights(run: Path, max_checkpoints: int) -> Path:
    """Write the mean of the last weights that were kept, and remove these."""
    target = run / AVERAGED
    if not (target / BEST_WEIGHTS).exists():
        kept = len(list((run / RECENT).glob("*.safetensors")))
        average_checkpoints(run, target, min(kept, max_checkpoints))
    shutil.rmtree(run / RECENT, ignore_errors=True)  # 340 MB each at the paper's size
    return target
