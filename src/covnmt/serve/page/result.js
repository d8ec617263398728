// The result of one model: its translation with the doubtful places marked in it, and for every
// sentence the source, the places in words, a check of another translation, and how it was made.

import { checkPanel } from "./check.js";
import { copyText, count, element, languageAttributes, lazyDetails } from "./dom.js";
import { howItWasMade } from "./made.js";
import { phrase, readSentence, weight } from "./sentence.js";
import { Highlighter, kindClass, textLine } from "./words.js";

const SHOWN_PLACES = 6;  // in the line that leads to the sentences with places
const LISTED_PLACES = 4;  // of a sentence; more of them are listed when asked for
const COPIED_MS = 2000;
const UNFINISHED = "The model found no end to this sentence: its translation is cut off.";
const UNUSUAL = "This is unlike the text that the model was trained on: it may be translated as nonsense.";
// The words of the server, and how the page says them.
const KINDS = {
  "left out": "May be left out",
  "too much": "May say too much",
  "said twice": "May be said twice",
};

/** A result that fills as the server sends sentences. */
export class ResultPanel {
  /** `model` has a name, a title, languages, bounds, and whether the text is not for it; `check(source, target, signal)` asks the server. */
  constructor(model, check) {
    this.model = model;
    this.check = check;
    this.sentences = [];
    this.drafts = [];  // elements of sentences that are still coming
    this.summary = element("p", { class: "summary" }, "Translating…");
    this.copy = element("button", { type: "button", disabled: true, onclick: () => this.copyAll() },
      "Copy translation");
    this.list = element("div", { class: "sentences" });
    this.node = element("section",
      { class: "result draft", "aria-busy": "true", "aria-label": `Translation by ${model.name}` },
      element("div", { class: "result-head" }, element("h2", {}, model.title), this.copy),
      this.summary, this.list);
  }

  /** Show a sentence that is still being translated. */
  partial(number, text) {
    let line = this.drafts[number];
    if (!line) {
      line = element("p", { class: "translation", ...languageAttributes(this.model.languages.target) });
      this.drafts[number] = line;
      this.list.insertBefore(line, this.drafts.slice(number + 1).find(Boolean) ?? null);
    }
    line.textContent = text;
  }

  /** Show a sentence that is done. */
  add(number, content) {
    const node = sentencePanel(this, content, number);
    const draft = this.drafts[number];
    if (draft) draft.replaceWith(node);
    else this.list.insertBefore(node, this.drafts.slice(number + 1).find(Boolean) ?? null);
    delete this.drafts[number];
  }

  /** Say what there is to look at; `text` is the whole translation, with its line breaks. */
  finish(text, warnings = []) {
    this.text = text;
    this.copy.disabled = !text;
    this.stop();
    this.node.classList.remove("draft");
    this.summary.replaceChildren(...summaryOf(this.sentences));
    if (this.sentences.length < 2) return;  // a single sentence has its warnings itself
    this.summary.before(...warnings.map((warning) =>
      element("p", { class: "warning" }, `${warning.message}.`)));
    this.node.classList.add("several");
  }

  /** Nothing more will come. */
  stop() {
    for (const line of this.drafts) line?.remove();
    this.drafts = [];
    this.node.removeAttribute("aria-busy");
    if (this.text !== undefined) return;
    this.summary.textContent = `Stopped after ${count(this.sentences.length, "sentence")}.`;
  }

  async copyAll() {
    const copied = await copyText(this.text);
    this.copy.textContent = copied ? "Copied" : "Select the text and copy it";
    setTimeout(() => { this.copy.textContent = "Copy translation"; }, COPIED_MS);
  }
}

function summaryOf(sentences) {
  const doubtful = sentences.filter(({ places }) => places.length);
  const total = doubtful.reduce((sum, { places }) => sum + places.length, 0);
  if (!sentences.some(({ words }) => words)) return [];
  if (!total) {
    // nothing found in what the model does not know, or did not finish, says nothing
    if (sentences.some(({ unreliable }) => unreliable)) return [];
    return [element("b", {}, "No doubtful places."),
      " A hint, not proof: only omissions and repetitions are looked for."];
  }
  const parts = [element("b", {}, `${count(total, "place")} to look at`)];
  if (sentences.length === 1) return [...parts, "."];
  const links = doubtful.slice(0, SHOWN_PLACES).flatMap(({ number, node }) => [", ",
    element("button", { type: "button", class: "jump", "aria-label": `Go to sentence ${number + 1}`,
      onclick: () => jumpTo(node) }, String(number + 1))]).slice(1);
  const rest = doubtful.length - SHOWN_PLACES;
  return [...parts, doubtful.length === 1 ? ", in sentence " : ", in sentences ", ...links,
    rest > 0 ? ` and ${rest} more.` : "."];
}

function jumpTo(node) {
  node.scrollIntoView({ block: "center" });
  node.focus({ preventScroll: true });
}

function sentencePanel(panel, content, number) {
  const { model } = panel;
  const node = element("article", { class: "sentence", tabindex: "-1" });
  const unfinished = content.finished === false;
  const unreliable = Boolean(content.unusual) || unfinished || model.isUnfit;
  const entry = { number, node, places: [], words: 0, unreliable };
  panel.sentences[number] = entry;
  if (!content.source_tokens?.length) {
    // a line without words, of dashes for example
    node.append(element("p", { class: "translation" }, content.text));
    return node;
  }
  const sentence = readSentence(content, model.languages, model);
  const highlighter = new Highlighter(sentence);
  Object.assign(entry, { places: sentence.places, words: sentence.target.words.length });
  const wrap = (side) => (k, text) => highlighter.register(side, k, element("span", {}, text));
  const checking = checkPanel(sentence, (target, signal) => panel.check(content.source, target, signal));
  node.append(
    textLine(sentence.target, { class: "translation" }, marksOn("target", sentence), wrap("target")),
    textLine(sentence.source, { class: "source-line" }, marksOn("source", sentence), wrap("source")),
    ...placeList(sentence),
    element("div", { class: "more" }, checking.node,
      lazyDetails({ class: "made" }, "How it was made", () =>
        howItWasMade(sentence, highlighter, `${model.name}${number ? `-${number + 1}` : ""}`, model))),
  );
  entry.check = checking;
  node.prepend(...[content.unusual && !model.isUnfit && UNUSUAL, unfinished && UNFINISHED].filter(Boolean)
    .map((text) => element("p", { class: "warning" }, text)));
  highlighter.watch(node);
  return node;
}

/** The places of a sentence on one side, for textLine(). */
function marksOn(side, sentence) {
  const several = sentence.places.length > 1;
  return sentence.places.flatMap((place, n) => {
    const words = place.side === side ? place.words : partners(place, sentence);
    return words.length ? [[words, place.kind, several ? n + 1 : null]] : [];
  });
}

/** The target words that say too much of a source word. Other places are on one side alone. */
function partners({ side, kind, words }, sentence) {
  if (side !== "source" || kind !== "too much") return [];
  return sentence.attention.flatMap((row, i) => {
    const best = row.indexOf(Math.max(...row));
    return words.includes(best) && weight(sentence, i, best) >= 0.5 ? [i] : [];
  });
}

function placeList(sentence) {
  if (!sentence.places.length) return [];
  const tag = sentence.places.length > 1 ? "ol" : "ul";
  const list = () => element(tag, { class: "places" }, ...sentence.places.map((place) => {
    const side = sentence[place.side];
    const words = element("bdi", { lang: side.lang }, phrase(side, place.words));
    // pointing at an entry highlights its first word
    return element("li",
      { class: kindClass(place.kind), "data-side": place.side, "data-k": place.words[0] },
      element("b", {}, KINDS[place.kind] ?? place.kind), ": ", words,
      ...place.reason ? [element("small", {}, place.reason)] : []);
  }));
  if (sentence.places.length <= LISTED_PLACES) return [list()];
  return [lazyDetails({}, `What the ${sentence.places.length} places are`, () => [list()])];
}
