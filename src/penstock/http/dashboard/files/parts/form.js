/** Forms: fields as rows of a table, values as an object. */
import { html, useId, useState } from "./ui.js";

/**
 * @typedef {Object} Field
 * @property {string} name the member of the values
 * @property {string} label
 * @property {"text"|"password"|"number"|"checkbox"|"select"|"textarea"|"file"} [type]
 * @property {any} [value] at the beginning
 * @property {Array<string|[string, string]>} [options] of a select: values, or [value, label]
 * @property {string} [help] a line below the field
 * @property {boolean} [required]
 * @property {number} [min] of a number
 * @property {string} [placeholder]
 * @property {Array<string>} [suggestions] for a text
 */

/** The values at the beginning. @param {Field[]} fields */
export const valuesOf = (fields) =>
  Object.fromEntries(
    fields.map((f) => [f.name, f.value ?? (f.type === "checkbox" ? false : f.type === "select" ? firstOf(f) : "")]),
  );
const firstOf = (field) => {
  const one = field.options?.[0];
  return Array.isArray(one) ? one[0] : (one ?? "");
};

/** One field with its label. onChange(value): a number field gives a number, or "" if it is empty. */
export function FieldRow({ field, value, onChange }) {
  const id = useId();
  const common = {
    id,
    name: field.name,
    required: field.required,
    placeholder: field.placeholder,
    "aria-describedby": field.help ? `${id}-help` : undefined,
  };
  const onText = (event) => onChange(event.currentTarget.value);
  let input;
  if (field.type === "select") {
    input = html`<select ...${common} value=${value} onChange=${onText}>${field.options.map((one) => {
      const [v, label] = Array.isArray(one) ? one : [one, one];
      return html`<option key=${v} value=${v}>${label}</option>`;
    })}</select>`;
  } else if (field.type === "textarea") {
    input = html`<textarea ...${common} rows=${field.rows ?? 5} spellcheck=${false} value=${value} onInput=${onText}></textarea>`;
  } else if (field.type === "checkbox") {
    input = html`<input ...${common} type="checkbox" checked=${value} onChange=${(e) => onChange(e.currentTarget.checked)} />`;
  } else if (field.type === "file") {
    input = html`<input ...${common} type="file" accept=${field.accept} onChange=${(e) => onChange(e.currentTarget.files[0] ?? "")} />`;
  } else if (field.type === "number") {
    input = html`<input ...${common} type="number" min=${field.min ?? 0} max=${field.max} step=${field.step ?? 1} value=${value}
      onInput=${(e) => onChange(e.currentTarget.value === "" ? "" : e.currentTarget.valueAsNumber)} />`;
  } else {
    input = html`<input ...${common} type=${field.type ?? "text"} value=${value} onInput=${onText} autocomplete=${field.autocomplete ?? "off"}
      spellcheck=${false} list=${field.suggestions ? `${id}-list` : undefined} />
      ${field.suggestions && html`<datalist id=${`${id}-list`}>${field.suggestions.map((s) => html`<option key=${s} value=${s} />`)}</datalist>`}`;
  }
  return html`<div class=${`field ${field.type ?? "text"}`}><label for=${id}>${field.label}</label>${input}
    ${field.help && html`<small id=${`${id}-help`}>${field.help}</small>`}</div>`;
}

/** Fields without a <form>. values: an object; onChange(newValues). @param {{fields: Field[]}} props */
export const Fields = ({ fields, values, onChange }) =>
  html`${fields.map(
    (field) =>
      html`<${FieldRow} key=${field.name} field=${field} value=${values[field.name]} onChange=${(v) => onChange({ ...values, [field.name]: v })} />`,
  )}`;

/**
 * A form in a page. onSubmit(values) may return a promise; its error is shown at the form.
 * @param {{fields: Field[], action: string, onSubmit: (values: Object) => any}} props
 */
export function Form({ fields, action, onSubmit, children }) {
  const [values, setValues] = useState(() => valuesOf(fields));
  const [state, setState] = useState({ isBusy: false, error: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ isBusy: true, error: null });
    try {
      await onSubmit(values);
      setState({ isBusy: false, error: null });
    } catch (error) {
      setState({ isBusy: false, error });
    }
  };
  return html`<form class="form" onSubmit=${submit}><${Fields} fields=${fields} values=${values} onChange=${setValues} />
    ${typeof children === "function" ? children(values) : children}
    ${state.error && html`<p class="error" role="alert">${state.error.message}</p>`}
    <div class="buttons"><button class="primary" disabled=${state.isBusy}>${action}</button></div></form>`;
}
