// What the page asks of the server.

/** A request that failed, with a message for the reader. */
export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const PARTS = ["tokens", "alignment", "coverage", "fertility", "remarks"];

export function models(key) {
  return ask("v1/models", { headers: headers(key) });
}

export function translate(query, key, signal) {
  const body = { text: query.text, model: query.model, return: PARTS };
  if (query.beam) body.beam = query.beam;
  return ask("v1/translate", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

function headers(key) {
  return key ? { "x-api-key": key } : {};
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer. Is it still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Failure(answer.status, content.error ?? `error ${answer.status}`);
  return content;
}
