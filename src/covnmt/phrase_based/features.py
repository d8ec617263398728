"""What a translation is scored by: the sum of its features times their weights."""

import numpy as np

# Name, weight before tuning (as Moses has them), and the least weight: a penalty may turn into a
# bonus, but a negative weight on a probability is noise.
_TABLE = (
    ("language model", 0.5, 0.0),
    ("jumps", 0.3, 0.0),
    ("monotone", 0.3, 0.0),
    ("swap", 0.3, 0.0),
    ("other order", 0.3, 0.0),
    ("p(target | source)", 0.2, 0.0),
    ("p(source | target)", 0.2, 0.0),
    ("lexicon, target | source", 0.2, 0.0),
    ("lexicon, source | target", 0.2, 0.0),
    ("phrases", 0.2, -np.inf),
    ("words", 1.0, -np.inf),
)
FEATURES = tuple(name for name, _, _ in _TABLE)
INITIAL_WEIGHTS = np.array([weight for _, weight, _ in _TABLE])
INITIAL_WEIGHTS /= INITIAL_WEIGHTS.sum()
MINIMUM_WEIGHTS = np.array([least for _, _, least in _TABLE])

LANGUAGE_MODEL, DISTORTION = 0, 1
ORIENTATION = slice(2, 5)  # of these one has a value for each phrase, the others are 0
PHRASE_FEATURES = slice(5, len(FEATURES))  # what a phrase pair has wherever it stands
