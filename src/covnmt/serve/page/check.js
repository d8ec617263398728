// Check what another translation of a sentence leaves out, and mark that on its words.

import { RequestError } from "./api.js";
import { element, languageAttributes } from "./dom.js";

const EMPTY = "Type or paste a translation of this sentence.";
const UNCHANGED = "This is the model's own translation. Change it, or paste another.";
const HINT = "A hint, not proof";
const WHY = "the model finds the translation more likely where the source lacks these words";

/** A box with a translation, at first the model's own; `ask(target, signal)` checks it. */
export function checkPanel(sentence, words, ask) {
  let pending = null;
  const input = element("textarea", { rows: 1, ...languageAttributes(sentence.languages.target),
    spellcheck: "false", "aria-label": "Translation to check" });
  input.value = sentence.text;
  const verdict = element("p", { class: "verdict", role: "status" });
  const showVerdict = (...parts) => verdict.replaceChildren(...parts);
  const reset = () => {
    pending?.abort();
    words.markOmitted([]);
    showVerdict();
  };
  const check = async () => {
    reset();
    if (!input.value.trim()) return showVerdict(EMPTY);
    const request = (pending = new AbortController());
    showVerdict("Checking…");
    try {
      const report = await ask(input.value, request.signal);
      words.markOmitted(report.left_out);
      showVerdict(...verdictFor(report, input.value));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof RequestError)) throw error;
      showVerdict(element("span", { class: "check-error" }, error.message));
    }
  };
  input.addEventListener("input", reset);
  const button = element("button", { type: "button", onclick: check }, "What does it leave out?");
  return element(
    "details",
    { class: "check" },
    element("summary", {}, "Check another translation"),
    input,
    element("div", { class: "row" }, button, verdict),
  );
}

function verdictFor(report, text) {
  if (text.trim() === report.own.trim()) return [UNCHANGED];
  const hint = (why) => element("small", {}, `${HINT}${why}.`);
  if (!report.left_out.length) return ["Nothing seems to be left out.", hint("")];
  const list = report.left_out
    .flatMap((omission) => [", ", element("mark", { dir: "auto" }, omission.text)]).slice(1);
  return ["Probably left out: ", ...list, hint(`: ${WHY}`)];
}
