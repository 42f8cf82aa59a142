/** Questions before something is done, and short notices after it. */
import { Fields, valuesOf } from "./form.js";
import { html, Store, useEffect, useRef, useState } from "./ui.js";

const open = new Store(null);
const notices = new Store([]);
let number = 0;

/** Says a line at the bottom of the page for some seconds. level: "ok" or "danger". */
export function toast(text, level = "ok") {
  const id = ++number;
  notices.set([...notices.value, { id, text, level }]);
  setTimeout(() => notices.set(notices.value.filter((one) => one.id !== id)), level === "ok" ? 5000 : 12_000);
}

/**
 * Asks, and does it. The dialog stays open with the server's reason if `run` fails.
 * @param {Object} what
 * @param {string} what.title "Purge orders?"
 * @param {any} [what.body] what will happen: counts, bytes, who is affected
 * @param {string} what.action the button: "Purge 3,120"
 * @param {boolean} [what.danger] whether something is lost
 * @param {string} [what.typed] a name that has to be typed first
 * @param {import("./form.js").Field[]} [what.fields] what the user may say
 * @param {string|((values: Object) => string)} [what.command] the command line that does the same
 * @param {(values: Object) => any} [what.preview] more of the body, made of the values
 * @param {(values: Object) => any} what.run does it; may return a promise; {again: what} is the next question
 * @param {string} [what.done] the notice after it
 * @returns {Promise<boolean>} whether it was done
 */
export function ask(what) {
  return new Promise((resolve) => open.set({ ...what, id: ++number, resolve }));
}

/** Shows something in a dialog that only closes. */
export const show = (title, body) => ask({ title, body, action: "" });

/** Draws the open dialog and the notices; the shell has one. */
export function DialogHost() {
  const what = open.use();
  const shown = notices.use();
  return html`${what && html`<${Dialog} key=${what.id} what=${what} />`}
    <div class="toasts" role="status">${shown.map((one) => html`<p key=${one.id} class=${`toast ${one.level}`}>${one.text}</p>`)}</div>`;
}

function Dialog({ what }) {
  const element = useRef(null);
  const fields = what.fields ?? [];
  const [values, setValues] = useState(() => valuesOf(fields));
  const [typed, setTyped] = useState("");
  const [state, setState] = useState({ isBusy: false, error: null });
  const result = useRef(false);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  const close = () => {
    open.set(null);
    what.resolve(result.current);
  };
  const submit = async (event) => {
    event.preventDefault();
    if (!what.run) return element.current.close();
    setState({ isBusy: true, error: null });
    try {
      const answer = await what.run(values);
      if (answer?.again) return open.set({ ...answer.again, id: ++number, resolve: what.resolve });
      result.current = true;
      element.current.close();
      if (what.done) toast(what.done);
    } catch (error) {
      setState({ isBusy: false, error });
    }
  };
  const command = typeof what.command === "function" ? what.command(values) : what.command;
  const isReady = !what.typed || typed === what.typed;
  return html`<dialog ref=${element} onClose=${close} aria-labelledby="dialog-title"><form onSubmit=${submit}>
    <h2 id="dialog-title">${what.title}</h2>
    ${what.body && html`<div class="body">${what.body}</div>`}
    ${fields.length > 0 && html`<${Fields} fields=${fields} values=${values} onChange=${setValues} />`}
    ${what.preview?.(values)}
    ${
      what.typed &&
      html`<${Fields} fields=${[{ name: "typed", label: html`Type <code>${what.typed}</code> to go on` }]} values=${{ typed }}
      onChange=${(v) => setTyped(v.typed)} />`
    }
    ${command && html`<details class="command"><summary>The same as a command</summary><code class="block">${command}</code></details>`}
    ${state.error && html`<p class="error" role="alert">${state.error.message}</p>`}
    <div class="buttons"><button type="button" onClick=${() => element.current.close()}>${what.run ? "Cancel" : "Close"}</button>
      ${what.run && html`<button class=${what.danger ? "danger" : "primary"} disabled=${state.isBusy || !isReady}>${typeof what.action === "function" ? what.action(values) : what.action}</button>`}</div>
  </form></dialog>`;
}

/** An argument of a command line, quoted for a shell if it needs it. */
export const shell = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'\\''`)}'`);

/** The option of a command line that says which vhost; with the space before it. */
export const ofVhost = (vhost) => (vhost === "/" ? "" : ` --vhost ${shell(vhost)}`);
