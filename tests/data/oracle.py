"""An independent translator of the synthetic pair: regular expressions over one letter per word.

It shares only the lexicon with `covnmt.data.synthetic`.
"""

import re
from itertools import chain, pairwise

from covnmt.data.synthetic import OBJECT_MARKER, SyntheticWord, build_lexicon

WORDS = {word.text: word for word in chain(*build_lexicon().values())}

KINDS = "noun verb adjective adverb determiner degree preposition connective subordinator"
LETTERS = dict(zip([*KINDS.split(), "relative", "past"], "NVARDGPCSWT", strict=True))
BARE = "D?(?:G*A)*N"
PHRASE = f"{BARE}(?:WV{BARE})?"

TargetWords = list[tuple[int, str]]  # source position, target word


def letters(words: list[SyntheticWord]) -> str:
    return "".join(LETTERS[word.kind] for word in words)


def translate(source: tuple[str, ...]) -> TargetWords:
    """Translate a sentence: clauses between joints, swapped around a subordinator."""
    words = [WORDS[text] for text in source]
    joints = [m.start() for m in re.finditer("[CS]", letters(words))]
    edges = [-1, *joints, len(words)]
    clauses = [translate_clause(words, a + 1, b) for a, b in pairwise(edges)]
    blocks = [clauses[0]]
    for joint, clause in zip(joints, clauses[1:], strict=True):
        if words[joint].kind == "subordinator":
            blocks[-1] = clause + translate_word(words, joint) + blocks[-1]
        else:
            blocks += [translate_word(words, joint), clause]
    return list(chain(*blocks))


def translate_clause(words: list[SyntheticWord], start: int, end: int) -> TargetWords:
    shape = re.compile(
        f"(?P<past>T?)(?P<subject>{PHRASE})(?P<verb>V)(?P<object>{PHRASE})"
        f"(?P<degrees>G*)(?P<adverb>R?)(?P<preposition>P?)(?P<place>(?:{PHRASE})?)"
    )
    match = shape.fullmatch(letters(words), start, end)
    assert match
    past, verb = bool(match["past"]), match.start("verb")
    *early, final = translate_word(words, verb, past)
    result = translate_phrase(words, *match.span("subject"), None, past) + early
    for part in ("adverb", "degrees"):
        result += chain(*(translate_word(words, j) for j in range(*match.span(part))))
    if match["place"]:
        result += translate_phrase(words, *match.span("place"), verb, past)
        result += translate_word(words, match.start("preposition"))
    result += translate_phrase(words, *match.span("object"), verb, past)
    return [*result, *mark(words, *match.span("object")), final]


def translate_phrase(
    words: list[SyntheticWord], start: int, end: int, verb: int | None, past: bool
) -> TargetWords:
    shape = re.compile(f"(?P<d>D?)(?P<m>[GA]*)(?P<n>N)(?:(?P<w>W)(?P<v>V)(?P<o>{BARE}))?")
    match = shape.fullmatch(letters(words), start, end)
    assert match
    noun = match.start("n")
    second = len(words[noun].forms) == 2 and verb is not None and words[verb].group == 1
    result: TargetWords = []
    if match["w"]:
        *early, final = translate_word(words, match.start("v"), past)
        theme = translate_phrase(words, *match.span("o"), match.start("v"), past)
        theme += mark(words, *match.span("o"))
        result += [*early, *theme, final, *translate_word(words, match.start("w"))]
    if match["d"]:
        result += translate_word(words, match.start("d"))
    result += translate_word(words, noun, second)
    for run in re.compile("(G*)(A)").finditer(letters(words), *match.span("m")):
        result += translate_word(words, run.start(2), words[noun].group == 1)
        result += chain(*(translate_word(words, j) for j in range(*run.span(1))))
    return result


def mark(words: list[SyntheticWord], start: int, end: int) -> TargetWords:
    noun = next(word for word in words[start:end] if word.kind == "noun")
    return [(-1, OBJECT_MARKER)] if noun.group == 1 else []


def translate_word(words: list[SyntheticWord], j: int, second: bool = False) -> TargetWords:
    return [(j, text) for text in words[j].forms[int(second)]]
