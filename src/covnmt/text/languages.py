"""Languages: their English names, and which of several a text is written in.

A language is recognized by the vocabulary of a model that reads or writes it: the tokens of a
vocabulary are sorted by frequency, so a token's rank gives its probability (Zipf's law). A text has
the language that gives it the highest probability. Where two languages share a vocabulary, their
words decide between them. Nothing is downloaded or trained.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from covnmt.text.codec import Codec
from covnmt.text.tokenize import is_byte_token, is_continuation_byte
from covnmt.text.vocabulary import UNK_ID

MAX_CHARACTERS = 1000  # of a text; more would not change the answer
# Nats that a token costs which is not in the vocabulary, and each of its characters.
UNKNOWN_TOKEN, UNKNOWN_CHARACTER = 10.0, 4.0
# Encodings that together have all usual characters of a language.
CHARACTER_SETS = {"ja": ("cp932",), "zh": ("gb2312", "big5")}

# ISO 639-1; the common name where there are several
_NAMES = """
aa Afar, ab Abkhazian, af Afrikaans, ak Akan, am Amharic, an Aragonese, ar Arabic, as Assamese,
av Avaric, ay Aymara, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian, bi Bislama,
bm Bambara, bn Bengali, bo Tibetan, br Breton, bs Bosnian, ca Catalan, ce Chechen, ch Chamorro,
co Corsican, cr Cree, cs Czech, cu Church Slavic, cv Chuvash, cy Welsh, da Danish, de German,
dv Divehi, dz Dzongkha, ee Ewe, el Greek, en English, eo Esperanto, es Spanish, et Estonian,
eu Basque, fa Persian, ff Fulah, fi Finnish, fj Fijian, fo Faroese, fr French, fy Western Frisian,
ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu Gujarati, gv Manx, ha Hausa, he Hebrew,
hi Hindi, ho Hiri Motu, hr Croatian, ht Haitian, hu Hungarian, hy Armenian, hz Herero,
ia Interlingua, id Indonesian, ie Interlingue, ig Igbo, ii Sichuan Yi, ik Inupiaq, io Ido,
is Icelandic, it Italian, iu Inuktitut, ja Japanese, jv Javanese, ka Georgian, kg Kongo, ki Kikuyu,
kj Kuanyama, kk Kazakh, kl Kalaallisut, km Khmer, kn Kannada, ko Korean, kr Kanuri, ks Kashmiri,
ku Kurdish, kv Komi, kw Cornish, ky Kyrgyz, la Latin, lb Luxembourgish, lg Ganda, li Limburgish,
ln Lingala, lo Lao, lt Lithuanian, lu Luba-Katanga, lv Latvian, mg Malagasy, mh Marshallese,
mi Maori, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese,
na Nauru, nb Norwegian Bokmål, nd North Ndebele, ne Nepali, ng Ndonga, nl Dutch,
nn Norwegian Nynorsk, no Norwegian, nr South Ndebele, nv Navajo, ny Chichewa, oc Occitan, oj Ojibwa,
om Oromo, or Odia, os Ossetian, pa Punjabi, pi Pali, pl Polish, ps Pashto, pt Portuguese,
qu Quechua, rm Romansh, rn Rundi, ro Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit,
sc Sardinian, sd Sindhi, se Northern Sami, sg Sango, si Sinhala, sk Slovak, sl Slovenian, sm Samoan,
sn Shona, so Somali, sq Albanian, sr Serbian, ss Swati, st Southern Sotho, su Sundanese, sv Swedish,
sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai, ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana,
to Tonga, tr Turkish, ts Tsonga, tt Tatar, tw Twi, ty Tahitian, ug Uyghur, uk Ukrainian, ur Urdu,
uz Uzbek, ve Venda, vi Vietnamese, vo Volapük, wa Walloon, wo Wolof, xh Xhosa, yi Yiddish,
yo Yoruba, za Zhuang, zh Chinese, zu Zulu
"""


def language_name(code: str) -> str:
    """Return the English name of a language, or its code if it has none in ISO 639-1."""
    return _names().get(code, code)


@cache
def _names() -> dict[str, str]:
    entries = (entry.split(maxsplit=1) for entry in _NAMES.split(","))
    return {code: " ".join(name.split()) for code, name in entries}


@dataclass(frozen=True)
class LanguageGuess:
    """A language that a text may be written in; confidence is from 0 to 1."""

    language: str
    confidence: float


@dataclass(frozen=True)
class LanguageEvidence:
    """The evidence for a language: the vocabulary of a model that reads or writes it."""

    language: str
    codec: Codec
    # For a vocabulary that two languages share: how much more probable (in nats) the words of a
    # text are in the other language. It is subtracted from the log-probability of the text.
    handicap: Callable[[str], float] | None = None


class LanguageDetector:
    """Distinguishes the languages of some models by their vocabularies."""

    def __init__(self, evidence: Iterable[LanguageEvidence]) -> None:
        self.evidence = list(evidence)  # a language may have several

    def detect(self, text: str) -> list[LanguageGuess]:
        """Return all languages, the likeliest first.

        The confidence is the probability of the language among these, times the share of the
        letters that its vocabulary has: a text in another language has none of theirs.
        """
        text = text[:MAX_CHARACTERS]
        best: dict[str, tuple[float, float]] = {}
        for evidence in self.evidence:
            score, known = _log_probability(text, evidence.language, evidence.codec)
            if evidence.handicap:
                score -= evidence.handicap(text)
            scored = (score, known)
            best[evidence.language] = max(scored, best.get(evidence.language, scored))
        highest = max(log_probability for log_probability, _ in best.values())
        weights = {name: math.exp(score - highest) for name, (score, _) in best.items()}
        total = sum(weights.values())
        guesses = [
            LanguageGuess(name, weights[name] / total * known) for name, (_, known) in best.items()
        ]
        return sorted(guesses, key=lambda guess: (-guess.confidence, -best[guess.language][0]))


def _log_probability(text: str, language: str, codec: Codec) -> tuple[float, float]:
    """Return the log-probability of a text, and the share of its letters that the language has."""
    tokens = codec.tokenize(text)
    normalizer = math.log(math.log(len(codec.vocabulary)) + 1)
    unknown, score = 0, 0.0
    for token, token_id in zip(tokens, codec.vocabulary.encode(tokens), strict=True):
        if token_id != UNK_ID and not is_byte_token(token):
            score -= math.log(token_id) + normalizer
        elif not is_continuation_byte(token):
            characters = 1 if is_byte_token(token) else sum(map(str.isalpha, token))
            unknown += characters
            score -= UNKNOWN_TOKEN + UNKNOWN_CHARACTER * characters
    letters = [character for character in text if character.isalpha()]
    foreign = sum(not _in_character_set(letter, language) for letter in letters)
    known_letters = max(0, len(letters) - max(unknown, foreign))
    return score - foreign * UNKNOWN_TOKEN, known_letters / max(1, len(letters))


def _in_character_set(character: str, language: str) -> bool:
    encodings = CHARACTER_SETS.get(language, ())
    return not encodings or any(_can_encode(character, encoding) for encoding in encodings)


def _can_encode(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def primary_language(code: str) -> str:
    """Return the language of a code whatever its country, script or case: `zh_TW` is zh.

    LibreTranslate writes zt for traditional Chinese, and pb for the Portuguese of Brazil.
    """
    language = code.strip().lower().replace("_", "-").partition("-")[0]
    return {"zt": "zh", "pb": "pt"}.get(language, language)


def guess_among(guesses: Sequence[LanguageGuess], languages: Iterable[str]) -> LanguageGuess:
    """Return the likeliest of these languages, at least one of which was considered."""
    wanted = set(languages)
    return next(guess for guess in guesses if guess.language in wanted)
