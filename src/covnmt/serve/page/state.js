// A link holds text and settings after its #, which browsers do not send to any server. The page
// takes them from there once; it writes nothing of its own into the address, where it would stay
// in the browser's history.

const NAMES = ["text", "model", "compare", "beam"];

/** Return what the address holds, and empty it. */
export function takeState() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  return Object.fromEntries(NAMES.map((name) => [name, parameters.get(name) ?? ""]));
}

/** Return a link that opens this page with this text and these settings. */
export function linkTo(state) {
  const entries = NAMES.filter((name) => state[name]).map((name) => [name, state[name]]);
  return `${location.href.split("#")[0]}#${new URLSearchParams(entries)}`;
}
