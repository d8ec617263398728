// Requests to the server.

/** A failed request, with a message to show. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const NO_ANSWER = "The server does not answer. Is it still running?";
const PARTS = ["readable_tokens", "alignment", "coverage", "fertility", "remarks"];

/** The models of the server, the default first. */
export function fetchModels(key) {
  return fetchJson("v1/models", { headers: headers(key) });
}

/** Translate; `onPartial(sentence number, text)` is called with partial translations meanwhile. */
export async function translate(query, key, signal, onPartial) {
  const body = { text: query.text, model: query.model, return: PARTS };
  if (query.beam) body.beam = query.beam;
  const response = await sendRequest("v1/translate/stream", postOptions(body, key, signal));
  const sentences = [];
  for await (const { name, content } of readEvents(response)) {
    if (name === "error") throw new RequestError(response.status, content.error);
    if (name === "done") return { model: content.model, text: content.texts[0], sentences };
    if (name === "sentence") {
      const { readable_source_tokens: source_tokens, readable_tokens: tokens } = content;
      sentences.push({ ...content, source_tokens, tokens });
    }
    onPartial(content.sentence_number, content.text);
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
  throw new RequestError(response.status, content.error ?? `error ${response.status}`);
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
      yield { name: name.slice("event: ".length), content: JSON.parse(data.slice("data: ".length)) };
    }
  }
}
