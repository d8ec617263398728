// What does another translation of a sentence leave out? Asked of the model, shown on its words.

import { Failure } from "./api.js";
import { element, written } from "./dom.js";

const EMPTY = "Type or paste a translation of this sentence.";
const OWN = "This is what the model says itself. Change it, or paste another translation.";
const HINT = "A hint, not proof";
const WHY = "the model finds the translation more likely where the source lacks these words";

/** A box for a translation, at first the model's own; `ask(target, signal)` checks what is in it. */
export function checkPanel(sentence, words, ask) {
  let pending = null;
  const box = element("textarea", { rows: 1, ...written(sentence.languages.target),
    spellcheck: "false", "aria-label": "Translation to check" });
  box.value = sentence.text;
  const verdict = element("p", { class: "verdict", role: "status" });
  const tell = (...parts) => verdict.replaceChildren(...parts);
  const forget = () => {
    pending?.abort();
    words.markLeftOut([]);
    tell();
  };
  const check = async () => {
    forget();
    if (!box.value.trim()) return tell(EMPTY);
    const mine = (pending = new AbortController());
    tell("Checking…");
    try {
      const found = await ask(box.value, mine.signal);
      words.markLeftOut(found.left_out);
      tell(...judgement(found, box.value));
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Failure)) throw error;
      tell(element("span", { class: "alarm" }, error.message));
    }
  };
  box.addEventListener("input", forget);
  const button = element("button", { type: "button", onclick: check }, "What does it leave out?");
  return element(
    "details",
    { class: "check" },
    element("summary", {}, "Check another translation"),
    box,
    element("div", { class: "row" }, button, verdict),
  );
}

function judgement(found, text) {
  if (text.trim() === found.own.trim()) return [OWN];
  const hint = (why) => element("small", {}, `${HINT}${why}.`);
  if (!found.left_out.length) return ["Nothing seems to be left out.", hint("")];
  const list = found.left_out.flatMap((each) => [", ", element("mark", { dir: "auto" }, each.text)]).slice(1);
  return ["Probably left out: ", ...list, hint(`: ${WHY}`)];
}
