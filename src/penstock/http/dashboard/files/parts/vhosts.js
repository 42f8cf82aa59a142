/** Rows of one vhost, or of all that the user sees, for lists that each vhost makes. */
import { at, get } from "./api.js";
import { usePolled } from "./live.js";

/** Rows that are asked of a vhost at most. */
export const ROWS_MAX = 500;

/**
 * The rows of a list of a vhost, each with its vhost, of the vhost of the selector or of all that run.
 * @param {(vhost: string) => Promise<Object[]>} ask
 * @param {string|undefined} vhost
 * @param {string} what part of the question: when it changes, rows are asked for at once
 * @param {number} [seconds] between two questions
 * @returns as usePolled; data is {rows, down}: down names the vhosts that do not answer
 */
export function useOfVhosts(ask, vhost, what, seconds = 5) {
  return usePolled(
    async () => {
      const all = await get("vhosts", { columns: "name,penstock.state" });
      const names = all
        .filter((one) => one.penstock.state === "running" && (!vhost || one.name === vhost))
        .map(({ name }) => name);
      const answers = await Promise.all(
        names.map((name) =>
          ask(name).then(
            (rows) => rows.map((row) => ({ ...row, vhost: name })),
            (error) => error,
          ),
        ),
      );
      const errors = answers.filter((answer) => answer instanceof Error);
      if (errors.length && errors.length === names.length) throw errors[0];
      return { rows: answers.filter(Array.isArray).flat(), down: names.filter((_, i) => answers[i] instanceof Error) };
    },
    [vhost, what],
    seconds,
  );
}

/** Asks for a list below penstock/, such as "streams", of a vhost: its first ROWS_MAX rows. */
export const listOf = (kind) => async (vhost) =>
  (await get(at("penstock", kind, vhost), { page: 1, page_size: ROWS_MAX })).items;
