// Requests to the server.

import { nextTask } from "./dom.js";

/** A failed request: status 0 if there was no answer, `wait` in seconds if the server names it. */
export class RequestError extends Error {
  constructor(status, message, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

const NO_ANSWER = "It may have been stopped, or the network is down. Your text stays here.";
const PARTS = ["tokens", "alignment", "coverage", "fertility", "remarks"];
// Results are shown as they arrive; after so long the page gets a chance to react to its user.
const SLICE_MS = 12;

/** The models of the server, the default first. */
export async function fetchModels(key) {
  return (await fetchJson("v1/models", { headers: headers(key) })).models;
}

/** Translate. `on.partial(number, text)` and `on.sentence(number, content)` are called as sentences
    grow and are done; returns what ends the stream: the model and the whole text. */
export async function translate(query, key, signal, on) {
  const body = { text: query.text, model: query.model, return: PARTS };
  if (query.beam) body.beam = query.beam;
  const response = await sendRequest("v1/translate/stream", postOptions(body, key, signal));
  let begun = performance.now();
  for await (const { name, content } of readEvents(response)) {
    if (name === "error") throw new RequestError(content.status, content.error);
    if (name === "done") return content;
    if (name === "partial") on.partial(content.sentence_number, content.text);
    if (name === "sentence") on.sentence(content.sentence_number, content);
    if (performance.now() - begun < SLICE_MS) continue;
    await nextTask();
    if (signal.aborted) throw signal.reason;
    begun = performance.now();
  }
  throw new RequestError(0, NO_ANSWER);
}

/** Ask what this translation of a sentence leaves out. */
export async function fetchCheck(model, source, target, key, signal) {
  const body = { model, pairs: [{ source, target }] };
  return (await fetchJson("v1/check", postOptions(body, key, signal))).checks[0];
}

function headers(key) {
  return key ? { "x-api-key": key } : {};
}

function postOptions(body, key, signal) {
  return {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
}

async function fetchJson(path, options) {
  return (await sendRequest(path, options)).json();
}

async function sendRequest(path, options) {
  const response = await fetch(path, options).catch(throwNoAnswer);
  if (response.ok) return response;
  const content = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("retry-after")) || 0;
  throw new RequestError(response.status, content.error ?? `error ${response.status}`, wait);
}

/** A cancelled request stays one; any other network error means that there is no server. */
function throwNoAnswer(error) {
  throw error.name === "AbortError" ? error : new RequestError(0, NO_ANSWER);
}

/** Yield the server-sent events of a response as they come. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(throwNoAnswer);
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n");
      if (!data) continue;  // a comment that keeps the connection open
      yield { name: name.slice("event: ".length), content: JSON.parse(data.slice("data: ".length)) };
    }
  }
}
