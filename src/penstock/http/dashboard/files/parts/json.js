/** JSON that people type into a form. */

/**
 * The object in a text; {} if it is empty. Throws an Error that names the field.
 * @param {string} label of the field
 * @param {string} text
 * @param {string} [example] such as '{"max-length": 1000}'
 */
export function objectOf(label, text, example = '{"name": "value"}') {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${label}: expected JSON such as ${example} (${error.message})`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value))
    throw new Error(`${label}: expected an object such as ${example}`);
  return value;
}

/** An object as people read it: one member a line; "" for {}. */
export const typed = (value) => (value && Object.keys(value).length ? JSON.stringify(value, null, 1) : "");
