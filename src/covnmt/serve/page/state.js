// What survives a reload is kept in the tab, and forgotten with it. A link holds text and settings
// after its #, which browsers do not send to any server; the page takes them from there once. It
// writes nothing of its own into the address, where it would stay in the browser's history.

const NAMES = ["text", "model", "compare", "beam"];
const KEPT = "state";

/** Return what the address holds, and empty it; without a link, what the tab holds. */
export function takeState() {
  const linked = location.hash.length > 1;
  const encoded = linked ? location.hash.slice(1) : sessionStorage.getItem(KEPT);
  const parameters = new URLSearchParams(encoded ?? "");
  if (linked) history.replaceState(null, "", location.pathname + location.search);
  return Object.fromEntries(NAMES.map((name) => [name, parameters.get(name) ?? ""]));
}

/** Keep text and settings for a reload. */
export function keepState(state) {
  try {
    sessionStorage.setItem(KEPT, encode(state));
  } catch {
    sessionStorage.removeItem(KEPT);  // a text of megabytes
  }
}

/** Return a link that opens this page with this text and these settings. */
export function linkTo(state) {
  return `${location.href.split("#")[0]}#${encode(state)}`;
}

function encode(state) {
  const entries = NAMES.filter((name) => state[name]).map((name) => [name, state[name]]);
  return new URLSearchParams(entries).toString();
}
