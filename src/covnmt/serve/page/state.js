// The view as part of the address, so that a link reproduces it.
// It stands after the #, which browsers do not send to any server.

const NAMES = ["text", "model", "compare", "beam"];

export function readState() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(NAMES.map((name) => [name, parameters.get(name) ?? ""]));
}

export function writeState(state) {
  const entries = Object.entries(state).filter(([name, value]) => NAMES.includes(name) && value);
  history.replaceState(null, "", `#${new URLSearchParams(entries)}`);
}
