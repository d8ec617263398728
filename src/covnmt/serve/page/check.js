// Check what another translation of a sentence leaves out, and show it in the source.

import { RequestError } from "./api.js";
import { count, element, languageAttributes, lazyDetails } from "./dom.js";
import { phrase, readSide, wordsAt } from "./sentence.js";
import { textLine } from "./words.js";

const EMPTY = "Type or paste a translation of this sentence.";
const UNCHANGED = "This is the model's own translation. Change it, or paste another one.";
const CLEAR = "Nothing found that is left out.";
const UNRELATED = "This does not look like a translation of the sentence.";
const UNUSUAL = "This is unlike the text that the model was trained on: do not rely on what it finds here.";
const MIN_UNRELATED = 0.5;  // probability
const CLEAR_HINT = "A hint, not proof: what is said in a way that the model does not know, or left out " +
  "in many small pieces, is not found.";

/** A box with a translation, at first the model's own; `ask(target, signal)` checks it. */
export function checkPanel(sentence, ask) {
  let pending = null;
  const { source, target } = sentence;
  const input = element("textarea", { rows: 1, ...languageAttributes(target.lang),
    spellcheck: "false", "aria-label": "Translation to check" });
  input.value = target.text;
  const verdict = element("div", { class: "verdict", role: "status" });
  const show = (...parts) => verdict.replaceChildren(...parts);
  const reset = () => {
    pending?.abort();
    show();
  };
  const check = async () => {
    reset();
    if (!input.value.trim()) return show(EMPTY);
    const request = (pending = new AbortController());
    show("Checking…");
    try {
      const report = await ask(input.value, request.signal);
      show(...input.value.trim() === report.own?.trim() ? [UNCHANGED] : verdictOn(report, source));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof RequestError)) throw error;
      show(element("span", { class: "failed" }, error.message));
    }
  };
  input.addEventListener("input", reset);
  const button = element("button", { type: "button", onclick: check }, "What does it leave out?");
  const node = lazyDetails({ class: "check" }, "Check another translation",
    () => [input, element("div", { class: "row" }, button), verdict]);
  /** Open the box with another translation and check it. */
  const open = (text) => {
    node.addEventListener("toggle", () => input.focus(), { once: true });
    node.open = true;
    input.value = text;
    check();
  };
  return { node, open };
}

/** What a check found: the words, and the source line with these words marked. */
function verdictOn(report, { text, lang }) {
  const source = readSide(text, report.source_tokens ?? [], lang);
  const omissions = (report.left_out ?? []).map((omission) => {
    const words = wordsAt(source, omission.start, omission.end);
    return { ...omission, words, text: words.length ? phrase(source, words) : omission.text };
  });
  const unrelated = report.unrelated >= MIN_UNRELATED;
  const notes = [unrelated && UNRELATED, report.unusual && UNUSUAL].filter(Boolean)
    .map((note) => element("p", { class: "warning" }, note));
  const judged = report.words > report.judged
    ? ` ${report.judged} of ${count(report.words, "word")} could be judged.` : "";
  if (!omissions.length) {
    if (notes.length) return notes;  // nothing found there says nothing
    return [...notes, element("p", {}, element("b", {}, CLEAR)), element("small", {}, CLEAR_HINT, judged)];
  }
  const list = omissions.flatMap((omission) => [", ", ...missingWords(omission, lang)]).slice(1);
  return [
    ...notes,
    element("p", {}, element("b", {}, `${count(omissions.length, "place")} to look at.`),
      " Probably left out: ", ...list),
    textLine(source, { class: "source-line" }, omissions.map(({ words }) => [words, "left out", null])),
    element("small", {}, "A hint, not proof. ", reason(omissions), judged),
  ];
}

/** Words that are left out, with the probability of that if the server knows it. */
export function missingWords({ text, probability }, lang) {
  const words = element("bdi", { class: "missing", lang }, text);
  return probability === undefined ? [words] : [words, ` (${Math.round(100 * probability)}%)`];
}

/** Why: a gain in nats as a ratio of probabilities. */
export function reason(omissions) {
  const times = Math.exp(Math.min(Math.max(...omissions.map(({ gain }) => gain ?? 0)), 20));
  const rounded = Number(times.toPrecision(times < 10 ? 1 : 2)).toLocaleString("en");
  const likely = times >= 2 ? `some ${rounded} times as likely` : "more likely";
  return `To the model, this translation is ${likely} when the source lacks these words.`;
}
