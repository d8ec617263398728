// Names of languages and models, and which model a text is for, by its script.

// Languages of these are distinguished by their script; all others are taken for Latin.
const SCRIPTS = {
  Arab: ["ar", "ckb", "fa", "ps", "sd", "ug", "ur"], Beng: ["bn"], Cyrl: ["be", "bg", "ru", "sr", "uk"],
  Deva: ["hi", "mr", "ne"], Geor: ["ka"], Grek: ["el"], Hang: ["ko"], Hani: ["zh"], Hebr: ["he", "yi"],
  Hira: ["ja"], Taml: ["ta"], Thai: ["th"],
};
const SCRIPT_OF = Object.fromEntries(
  Object.entries(SCRIPTS).flatMap(([script, codes]) => codes.map((code) => [code, script])));
const PATTERNS = Object.fromEntries(
  [...Object.keys(SCRIPTS), "Latn"].map((script) => [script, new RegExp(`\\p{Script=${script}}`, "gu")]));
PATTERNS.Hira = /[\p{Script=Hira}\p{Script=Kana}]/gu;
// Frequent words that others of these languages do not have.
const WORDS = {
  de: /\b(der|das|und|ist|nicht|ein|eine|den|mit|von|zu|auf|für|ich|sie|wir|es)\b/giu,
  en: /\b(the|and|of|to|is|are|was|that|it|with|for|you|not|this|be|have)\b/giu,
  es: /\b(el|los|las|que|y|una|por|con|para|es|del|está|no)\b/giu,
  fr: /\b(le|les|des|et|est|une|que|dans|pour|pas|qui|sur|du|nous|vous)\b/giu,
};
const BEGINNING = 2000;  // characters of a text that are looked at
const MIN_SHARE = 0.3;
const MIN_WORDS = 2;  // of the target language in a text that is in it

/** "Japanese", or the code itself if the browser does not know it. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code);
  } catch {
    return code;
  }
}

/** The languages of a model, or nothing: a server that does not know them says "source". */
export function languagesOf(model) {
  return model && model.source !== "source" ? { source: model.source, target: model.target } : {};
}

/** What a model translates, in words; its name if it does not say. */
function describe(model) {
  const { source, target } = languagesOf(model);
  return model.description || (source ? `${languageName(source)} to ${languageName(target)}` : model.name);
}

/** The description of a model, with its name where another model has the same one. */
export function label(model, models) {
  const text = describe(model);
  const same = models.filter((other) => describe(other) === text);
  return same.length > 1 ? `${text} (${model.name})` : text;
}

/** How well a text fits a language: the share of its letters that are in the right script. */
function fit(text, code) {
  const start = text.slice(0, BEGINNING);
  const letters = start.match(/\p{L}/gu)?.length ?? 0;
  if (!letters) return 1;
  const share = (script) => (start.match(PATTERNS[script])?.length ?? 0) / letters;
  if (code === "ja") return share("Hira") ? share("Hira") + share("Hani") : share("Hani") / 2;
  if (code === "zh") return share("Hira") > 0.05 ? 0 : share("Hani");
  const known = WORDS[code] ? (start.match(WORDS[code])?.length ?? 0) / letters : 0;
  return share(SCRIPT_OF[code] ?? "Latn") + known;
}

/** Whether a text can be in the language of a model. */
export function fits(text, model) {
  const { source } = languagesOf(model);
  return !source || fit(text, source) >= MIN_SHARE;
}

/** Whether a text seems to be in the language that a model translates into. Words tell only those
    languages apart that are listed here; for others the script decides. */
export function isTranslated(text, model) {
  const { source, target } = languagesOf(model);
  if (!WORDS[source] || !WORDS[target]) return false;
  const start = text.slice(0, BEGINNING);
  const [own, other] = [source, target].map((code) => start.match(WORDS[code])?.length ?? 0);
  return other >= MIN_WORDS && other > own;
}

/** The model whose language a text seems to be in; otherwise one of unknown language, or the first. */
export function guessModel(text, models) {
  const known = models.filter((model) => languagesOf(model).source);
  const scores = known.map((model) => fit(text, model.source));
  const best = Math.max(...scores);
  if (best >= MIN_SHARE) return known[scores.indexOf(best)];
  return models.find((model) => !known.includes(model)) ?? models[0];
}
