/** The HTTP API, as the signed-in user. Every function returns a promise; errors are ApiErrors. */
import { Store } from "./ui.js";

/** Who is signed in: undefined until it is known, null if nobody, else {name, tags}. */
export const user = new Store(undefined);

/** status: of HTTP; 0 if the server was not reached. reason: a text for people. */
export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/**
 * The address of something below /api: at("queues", "/", "orders") is "queues/%2F/orders".
 * @param {...string} names
 */
export const at = (...names) => names.map(encodeURIComponent).join("/");

/** The query of an address; members that are undefined, null or "" are left out. */
export function query(params) {
  const kept = Object.entries(params ?? {}).filter(([, v]) => v !== undefined && v !== null && v !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

async function ask(method, path, params, body, headers = {}) {
  // A browser takes these parts of an address for directories, also as %2E.
  const dots = path.split("/").find((name) => name === "." || name === "..");
  if (dots) throw new ApiError(0, `A browser cannot ask for the name "${dots}". The command penstock can.`);
  let answer;
  const address = `api/${path}${query(params)}`;
  const early = method === "GET" && globalThis.penstockAsked.get(address); // of first.js; refused to who was not signed in yet
  globalThis.penstockAsked.delete(address);
  try {
    answer = early && (await early);
    if (!answer?.ok)
      answer = await fetch(address, {
        method,
        headers: {
          "X-Penstock": "1",
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
  } catch {
    throw new ApiError(0, "The server does not answer.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = null;
  }
  if (answer.ok) return value;
  if (answer.status === 401 && path !== "login" && user.value) await whoami();
  throw new ApiError(answer.status, reasonOf(value) ?? (text.slice(0, 300) || `${answer.status} ${answer.statusText}`));
}

function reasonOf(value) {
  const reason = value?.reason ?? value?.error;
  return reason === undefined ? undefined : typeof reason === "string" ? reason : JSON.stringify(reason);
}

/** Reads. params: the query, an object. */
export const get = (path, params) => ask("GET", path, params);
export const post = (path, body = {}, params = {}) => ask("POST", path, params, body);
export const put = (path, body = {}, params = {}) => ask("PUT", path, params, body);
/** Deletes. headers: such as X-Reason of a connection. */
export const del = (path, params = {}, headers = {}) => ask("DELETE", path, params, undefined, headers);

/** Deletes one after the other. What is gone already does not keep the others. */
export async function delAll(paths, params, headers) {
  for (const path of paths)
    try {
      await del(path, params, headers);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
}

let asking = null;

/** Asks who is signed in, once for all who wait. A permission that is missing is a 401 as well. */
export function whoami() {
  // first.js has asked once already.
  asking ??= (globalThis.penstockWhoami ?? fetch("api/whoami", { headers: { "X-Penstock": "1" } }))
    .then(
      async (answer) => {
        if (answer.ok) {
          const now = await answer.json();
          // Only if it is another one: who follows it asks again, and may get the 401 again that made us ask.
          if (JSON.stringify(now) !== JSON.stringify(user.value)) user.set(now);
        } else if (answer.status === 401 || user.value === undefined) user.set(null);
      },
      () => {
        if (user.value === undefined) user.set(null);
      },
    )
    .finally(() => {
      globalThis.penstockWhoami = undefined;
      asking = null;
    });
  return asking;
}

/** Signs in; throws ApiError 401 if the name or the password is wrong, or the user has no tag. */
export async function login(username, password) {
  await post("login", { username, password });
  user.set(await get("whoami"));
}

/** Signs out. */
export async function logout() {
  await post("logout");
  user.set(null);
}

/** Whether the user has the tag: "management", "policymaker", "monitoring" or "administrator". */
export function may(tag) {
  const has = user.value?.tags ?? [];
  return has.includes("administrator") || has.includes(tag) || (tag === "management" && has.length > 0);
}
