/** Rows of one vhost, or of all that the user sees, for lists that each vhost makes. */
import { at, get } from "./api.js";
import { usePolled } from "./live.js";

/** Rows that are asked of a vhost at most. */
export const ROWS_MAX = 500;

/**
 * The rows of a list of a vhost, each with its vhost, of the vhost of the selector or of all that run.
 * @param {(vhost: string) => Promise<{rows: Object[], isCut: boolean}>} ask
 * @param {string|undefined} vhost
 * @param {string} what part of the question: when it changes, rows are asked for at once
 * @param {number} [seconds] between two questions
 * @returns as usePolled; data is {rows, down, isCut}: down names the vhosts that do not run or answer, isCut says whether one has
 *   more rows
 */
export function useOfVhosts(ask, vhost, what, seconds = 5) {
  return usePolled(
    async () => {
      const all = (await get("vhosts", { columns: "name,penstock.state" })).filter(
        ({ name }) => !vhost || name === vhost,
      );
      const names = all.filter((one) => one.penstock.state === "running").map(({ name }) => name);
      const answers = await Promise.all(
        names.map((name) =>
          ask(name).then(
            ({ rows, isCut }) => ({ rows: rows.map((row) => ({ ...row, vhost: name })), isCut }),
            (error) => error,
          ),
        ),
      );
      const errors = answers.filter((answer) => answer instanceof Error);
      if (errors.length && errors.length === names.length) throw errors[0];
      const good = new Map(
        names.map((name, i) => [name, answers[i]]).filter(([, answer]) => !(answer instanceof Error)),
      );
      return {
        rows: [...good.values()].flatMap(({ rows }) => rows),
        down: all.map(({ name }) => name).filter((name) => !good.has(name)),
        isCut: [...good.values()].some(({ isCut }) => isCut),
      };
    },
    [vhost, what],
    seconds,
  );
}

/** Asks for a list below penstock/, such as "streams", of a vhost: its first ROWS_MAX rows. */
export const listOf = (kind) => async (vhost) => {
  const page = await get(at("penstock", kind, vhost), { page: 1, page_size: ROWS_MAX });
  return { rows: page.items, isCut: page.total_count > page.items.length };
};
