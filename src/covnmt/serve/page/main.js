// The page: translates what is typed, and shows the results.

import { fetchCheck, RequestError, fetchModels, translate } from "./api.js";
import { copyText, element, languageAttributes } from "./dom.js";
import { workedExample } from "./example.js";
import { examplesFor } from "./examples.js";
import { fits, guessModel, isTranslated, label, languageName, languagesOf } from "./languages.js";
import { ResultPanel } from "./result.js";
import { keepState, linkTo, takeState } from "./state.js";

const TYPING_PAUSE_MS = 400;
// A translation that is done sooner replaces the one before it without drafts between them.
const DRAFT_DELAY_MS = 150;
const LONG_LINK = 8000;
const field = Object.fromEntries(
  ["form", "text", "model", "compare", "beam", "settings", "examples", "key", "key-row", "choices",
    "link", "status", "notice", "error", "results", "intro"]
    .map((id) => [id, document.getElementById(id)]));
// What went wrong, by the status of the answer; the server's message says the rest.
const TITLES = {
  0: "The server does not answer.",
  401: "This server asks for a key.",
  408: "This took too long.",
  413: "This text is too long.",
  422: "This cannot be translated.",
  429: "The limit is reached.",
  500: "Something failed on the server.",
  503: "The server cannot answer now.",
};

let models = [];
let linked = { model: "", compare: "" };  // of the last link, until the models are loaded
let pending = null;
let timer = null;

async function start() {
  takeLink();
  field.key.value = sessionStorage.getItem("key") ?? "";
  field.form.addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });
  for (const name of ["text", "beam"]) field[name].addEventListener("input", scheduleRun);
  for (const name of ["model", "compare"]) field[name].addEventListener("change", run);
  field.model.addEventListener("change", offerExamples);
  field.key.addEventListener("change", () => {
    sessionStorage.setItem("key", field.key.value);
    act();
  });
  field.examples.addEventListener("change", () => {
    if (field.examples.value) field.text.value = field.examples.value;
    field.examples.value = "";
    run();
  });
  field.link.addEventListener("click", copyLink);
  addEventListener("hashchange", () => {
    if (location.hash.length < 2) return;
    takeLink();
    chooseLinked();
    run();
  });
  await loadModels();
}

/** Translate; before that, get the models if they could not be had so far. */
function act() {
  if (models.length) run();
  else loadModels();
}

async function loadModels() {
  clearError();
  try {
    models = await fetchModels(field.key.value);
  } catch (error) {
    showError(error);
    return showExample();
  }
  if (!field["key-row"].hidden) field.text.focus();  // what had the focus is hidden now
  field["key-row"].hidden = true;
  field.choices.hidden = false;
  const languages = new Set(models.map((model) => languagesOf(model).source).filter(Boolean));
  const options = (list) => list.map((model) => element("option",
    { value: model.name, title: `${model.name}; coverage: ${model.coverage}` }, label(model, models)));
  field.model.replaceChildren(
    ...languages.size > 1 ? [element("option", { value: "" }, "Detected from the text")] : [],
    ...options(models));
  const comparable = models.filter((model) => models.some((other) => canCompare(model, other)));
  field.compare.replaceChildren(element("option", { value: "" }, "nothing"), ...options(comparable));
  field.compare.closest("label").hidden = !comparable.length;
  chooseLinked();
  await run();
  await showExample();
}

/** Whether two models can be compared: they read the same language. */
function canCompare(model, other) {
  return model !== other && model.source === other.source;
}

async function showExample() {
  field.intro.replaceChildren(await workedExample(models, tryExample));
}

/** Translate the sentence of the example, and check the translation in it. */
async function tryExample(source, translation, model) {
  field.text.value = source;
  field.compare.value = "";
  if (chosenModel() !== model) field.model.value = model.name;
  const [panel] = await run() ?? [];
  panel?.sentences[0]?.check.open(translation);
}

// Text is taken at once, the models when they are loaded: what is typed meanwhile must stay.
function takeLink() {
  const state = takeState();
  linked = state;
  if (state.text) field.text.value = state.text;
  if (state.beam) field.beam.value = state.beam;
}

function chooseLinked() {
  for (const name of ["model", "compare"]) {
    if (models.some((model) => model.name === linked[name])) field[name].value = linked[name];
  }
  if (field.compare.value || field.beam.value) field.settings.open = true;
  offerExamples();
}

/** The model that was chosen, or else the one that the text seems to be for. */
function chosenModel() {
  return models.find((model) => model.name === field.model.value) ?? guessModel(field.text.value, models);
}

function offerExamples() {
  const chosen = models.filter((model) => [model.name, ""].includes(field.model.value));
  const bySource = new Map(chosen.toReversed().map((model) => [model.source, model]));
  const groups = [...bySource.values()].toReversed()
    .map((model) => [languagesOf(model).source, examplesFor(model)]).filter(([, list]) => list.length);
  const option = ([title, text]) => element("option", { value: text }, title);
  field.examples.disabled = !groups.length;
  field.examples.replaceChildren(
    element("option", { value: "" }, groups.length ? "choose…" : "none"),
    ...groups.flatMap(([lang, list]) => lang && groups.length > 1
      ? [element("optgroup", { label: languageName(lang) }, ...list.map(option))] : list.map(option)));
}

function scheduleRun() {
  clearTimeout(timer);
  timer = setTimeout(run, TYPING_PAUSE_MS);
}

/** Translate what is in the text box; return the panels once they are complete. */
async function run() {
  clearTimeout(timer);
  if (!models.length) return;  // loadModels() calls again
  pending?.abort();
  clearError();
  const text = field.text.value;
  keepState(currentState());
  field.intro.hidden = Boolean(text.trim());
  const model = chosenModel();
  adaptTo(model, text);
  if (!text.trim()) return showPanels([], "");
  if (!field.beam.checkValidity()) {
    showPanels([], "");
    const { min, max } = field.beam;
    return showError(new RequestError(422, `Beam: a whole number from ${min} to ${max}.`));
  }
  const request = (pending = new AbortController());
  const key = field.key.value;
  const other = models.find((each) => each.name === field.compare.value && canCompare(model, each));
  const beam = Number(field.beam.value);
  const panels = [model, ...other ? [other] : []].map((each) => new ResultPanel(
    { ...each, beam: beam || each.beam, title: label(each, models), languages: languagesOf(each),
      isUnfit: !field.notice.hidden },
    (source, target, signal) => fetchCheck(each.name, source, target, key, signal)));
  const drafting = setTimeout(() => showPanels(panels, "Translating…"), DRAFT_DELAY_MS);
  field.status.textContent = "Translating…";
  const started = performance.now();
  try {
    await Promise.all(panels.map(async (panel) => {
      const { texts, warnings = [] } = await translate(
        { text, model: panel.model.name, beam }, key, request.signal,
        { partial: (n, part) => panel.partial(n, part), sentence: (n, content) => panel.add(n, content) });
      // the notice above the results says the same of the whole text
      panel.finish(texts[0], warnings.filter(({ kind }) => kind === "unfinished" || !panel.model.isUnfit));
    }));
    clearTimeout(drafting);
    const seconds = Math.max((performance.now() - started) / 1000, 0.1);
    showPanels(panels, `Done in ${seconds.toFixed(1)} s`);
    return panels;
  } catch (error) {
    clearTimeout(drafting);
    if (error.name === "AbortError") return;
    request.abort();
    // what was shown for another text goes; sentences of this one that are done stay
    const begun = panels.filter((panel) => panel.sentences.length);
    for (const panel of begun) panel.stop();
    showPanels(begun, "");
    showError(error);
  }
}

/** Show the usual beam of a model and the language of its text, and say if the text is not for it. */
function adaptTo(model, text) {
  field.beam.placeholder = model.beam;
  const { source } = languagesOf(model);
  const { lang = "", dir } = languageAttributes(source);
  Object.assign(field.text, { lang, dir });
  const notice = text.trim() ? noticeOn(model, text) : [];
  field.notice.hidden = !notice.length;
  field.notice.replaceChildren(...notice);
}

/** What to say of a text that is not for the model: which other model it is for, if there is one. */
function noticeOn(model, text) {
  const { source, target } = languagesOf(model);
  if (isTranslated(text, model)) return [`This looks like ${languageName(target)} already: expect nonsense.`];
  if (fits(text, model)) return [];
  const codes = field.model.value ? [source] : models.map((each) => languagesOf(each).source).filter(Boolean);
  const names = new Intl.ListFormat("en", { type: "disjunction" }).format(new Set(codes.map(languageName)));
  const other = guessModel(text, models);
  const from = languagesOf(other).source;
  if (!from || from === source || !fits(text, other)) return [`This does not look like ${names}: expect nonsense.`];
  const change = () => {
    field.model.value = other.name;
    offerExamples();
    run();
  };
  return [`This does not look like ${names}. `,
    element("button", { type: "button", onclick: change }, `Translate from ${languageName(from)}`)];
}

function showPanels(panels, status) {
  field.status.textContent = status;
  field.results.classList.toggle("two", panels.length > 1);
  const nodes = panels.map((panel) => panel.node);
  const shown = [...field.results.children];
  if (shown.length === nodes.length && shown.every((node, k) => node === nodes[k])) return;
  field.results.replaceChildren(...nodes);
}

function clearError() {
  field.error.hidden = true;
  field.error.replaceChildren();
}

function showError(error) {
  if (!(error instanceof RequestError)) throw error;
  const { status, message, wait } = error;
  const wanted = status === 401;
  const wrongKey = wanted && field.key.value;
  const title = wrongKey ? "This is not the key of this server."
    : TITLES[status] ?? "The server refused this.";
  const hint = wait ? ` Wait ${wait} s.` : "";
  const again = element("button", { type: "button", onclick: act }, "Try again");
  field.status.textContent = "";
  field.error.hidden = false;
  field.error.replaceChildren(element("b", {}, title), " ",
    ...wanted ? ["Whoever runs it can give you one; it stays in this browser tab."]
      : [element("span", {}, `${message[0].toUpperCase()}${message.slice(1).replace(/\.?$/, ".")}${hint}`)],
    ...[0, 408, 429, 500, 503].includes(status) ? [again] : []);
  if (!wanted) return;
  field["key-row"].hidden = false;
  field.key.focus();
  field.key.select();
}

function currentState() {
  const names = ["text", "model", "compare", "beam"];
  return Object.fromEntries(names.map((name) => [name, field[name].value]));
}

async function copyLink() {
  const link = linkTo(currentState());
  const long = link.length > LONG_LINK ? " It is long; some programs cut such links." : "";
  if (await copyText(link)) field.status.textContent = `Link copied; it holds the text.${long}`;
  else prompt("Copy this link:", link);
}

start();
