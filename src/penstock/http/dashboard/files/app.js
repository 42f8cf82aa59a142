/** The shell: sign-in, navigation, search, keys; and the page of the address within it. */
import { PAGES, pageOf } from "./pages/index.js";
import { at, get, login, logout, user, whoami } from "./parts/api.js";
import { themed } from "./parts/chart.js";
import { ask, DialogHost, toast } from "./parts/dialog.js";
import { Form } from "./parts/form.js";
import { areKeysOn, KEYS, listen, setKeysOn } from "./parts/keys.js";
import { hidden, paused, stream, usePolled } from "./parts/live.js";
import { useProblems } from "./parts/problems.js";
import { href, route, setParams } from "./parts/router.js";
import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./parts/ui.js";
import { Problem, Sentence } from "./parts/words.js";

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.cookie = `penstock.theme=${theme}; max-age=31536000; SameSite=Strict`; // first.js reads it
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themed.set(themed.value + 1);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => themed.set(themed.value + 1));

const showKeys = () =>
  ask({
    title: "Keys",
    action: "",
    body: html`<table><tbody>${KEYS.map(([key, does]) => html`<tr key=${key}><td><kbd>${key}</kbd></td><td>${does}</td></tr>`)}</tbody></table>
    <label><input type="checkbox" checked=${areKeysOn()} onChange=${(e) => setKeysOn(e.currentTarget.checked)} /> Single keys are on</label>`,
  });

function App() {
  const who = user.use();
  const { names, params } = route.use();
  const hadUser = useRef(false);
  if (who) hadUser.current = true;
  useEffect(() => listen({ showKeys, pages: PAGES }), []);
  if (who === null && !hadUser.current) return html`<${SignIn} />`;
  return html`<a class="skip" href="#main" onClick=${(e) => {
    e.preventDefault();
    document.getElementById("main").focus();
  }}>Skip to the page</a>
    <${Top} who=${who} vhost=${params.vhost} />
    <div class="under"><${Nav} current=${names[0]} />
      <main id="main" tabindex="-1">${who === null && html`<${SignIn} again />`}<${Alarm} isShown=${names[0] !== "overview" && names[0] !== "alarms"} /><${Page} names=${names} params=${params} /></main></div>
    <${DialogHost} />`;
}

function SignIn({ again }) {
  const form = html`<${Form} action="Sign in" fields=${[
    { name: "username", label: "User", required: true, autocomplete: "username" },
    { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
  ]}
    onSubmit=${({ username, password }) => login(username, password)} />`;
  return again
    ? html`<section class="panel signin-again" role="alert"><h2>Your session has ended. Sign in to go on.</h2>${form}</section>`
    : html`<main class="signin"><h1>Penstock</h1>${form}</main>`;
}

function Top({ who, vhost }) {
  const vhosts = usePolled(() => get("vhosts", { columns: "name" }), [], 30).data ?? [];
  const isPaused = paused.use();
  const state = stream.use();
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "auto");
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  return html`<header class="top"><a class="brand" href=${href(["overview"])}>Penstock</a>
    <label class="vhost"><span class="unseen">vhost</span><select value=${vhost ?? ""} onChange=${(e) => setParams({ vhost: e.currentTarget.value, page: "" })}>
      <option value="">all vhosts</option>${vhosts.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    <${Search} vhost=${vhost} />
    <span class=${`state ${isPaused ? "paused" : state}`}>${isPaused ? "paused" : state === "live" ? "live" : state === "stale" ? "no news" : ""}</span>
    <button aria-pressed=${isPaused} onClick=${() => paused.set(!isPaused)} title="Stop or go on with all figures (space)">${isPaused ? "Go on" : "Pause"}</button>
    <button onClick=${() => {
      set(next);
      setTheme(next);
    }} title=${`Theme: ${theme}. Change to ${next}`}><span aria-hidden="true">◐</span><span class="unseen">Theme: ${theme}</span></button>
    <button onClick=${showKeys} title="Keys (?)"><span aria-hidden="true">?</span><span class="unseen">Keys</span></button>
    ${
      who &&
      html`<button class="who" title=${`Tags: ${who.tags.join(", ") || "none"}. Sign out`} onClick=${async () => {
        try {
          await logout();
          location.reload();
        } catch (error) {
          toast(error.message, "danger");
        }
      }}>${who.name}: sign out</button>`
    }
  </header>`;
}

/** Pages, and queues by their names from the server. */
function Search({ vhost }) {
  const [text, setText] = useState("");
  const [queues, setQueues] = useState([]);
  const [chosen, setChosen] = useState(0);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    setChosen(0);
    if (!text) return setQueues([]);
    let isOld = false;
    const timer = setTimeout(
      () =>
        get(vhost ? at("queues", vhost) : "queues", {
          name: text,
          page: 1,
          page_size: 10,
          columns: "name,vhost",
          disable_stats: true,
        }).then(
          (answer) => {
            if (!isOld) setQueues(answer.items);
          },
          () => {
            if (!isOld) setQueues([]);
          },
        ),
      120,
    );
    return () => {
      isOld = true;
      clearTimeout(timer);
    };
  }, [text, vhost]);
  const found = [
    ...PAGES.filter((page) => page.nav && text && page.title.toLowerCase().includes(text.toLowerCase())).map(
      (page) => ({ key: page.path, title: page.title, kind: "page", to: href([page.path]) }),
    ),
    ...queues.map((queue) => ({
      key: `${queue.vhost}\n${queue.name}`,
      title: queue.name,
      kind: `queue of ${queue.vhost}`,
      to: href(["queues", queue.vhost, queue.name]),
    })),
  ];
  const leave = () => {
    setOpen(false);
    setText("");
  };
  const onKeyDown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (found.length) setChosen((chosen + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
    } else if (event.key === "Enter" && text) {
      location.hash = found[chosen]?.to ?? href(["queues"], { filter: text });
      leave();
      event.currentTarget.blur();
    } else if (event.key === "Escape") {
      leave();
      event.currentTarget.blur();
    }
  };
  const shown = isOpen && text;
  return html`<div class="search" role="search"><input id="search" type="search" placeholder="search  /" role="combobox" aria-label="Search pages and queues" aria-expanded=${Boolean(shown)} aria-controls="found"
      aria-activedescendant=${shown && found.length ? `found-${chosen}` : undefined} autocomplete="off" spellcheck="false"
      value=${text} onInput=${(e) => {
        setText(e.currentTarget.value);
        setOpen(true);
      }} onKeyDown=${onKeyDown} onBlur=${() => setTimeout(() => setOpen(false), 150)} onFocus=${() => setOpen(true)} />
    <ul id="found" role="listbox" aria-label="Found" hidden=${!shown || !found.length}>${found.map(
      (one, i) => html`<li key=${one.key} id=${`found-${i}`} role="option" aria-selected=${i === chosen}
      onMouseDown=${(e) => {
        e.preventDefault();
        location.hash = one.to;
        leave();
      }}>${one.title} <small>${one.kind}</small></li>`,
    )}</ul></div>`;
}

const QUIET_MS = 60_000; // between two alarms that screen readers read out

/** On every page, what is dangerous: publishers that wait, a vhost that is down. */
function Alarm({ isShown }) {
  const alarm = useProblems().loud.find((one) => one.level === "danger");
  const said = useRef({ text: "", at: -QUIET_MS });
  if (alarm && alarm.text !== said.current.text && Date.now() - said.current.at > QUIET_MS)
    said.current = { text: alarm.text, at: Date.now() };
  return html`<div class="unseen" aria-live="polite">${alarm ? said.current.text : ""}</div>${alarm && isShown && html`<${Sentence} ...${alarm} />`}`;
}

function Nav({ current }) {
  const { loud } = useProblems();
  return html`<nav class="side" aria-label="Pages">${PAGES.filter((page) => page.nav).map((page) => {
    const problems = page.path === "alarms" ? loud : [];
    return html`<a key=${page.path} href=${href([page.path])} class=${problems.length ? "loud" : undefined} aria-current=${page.path === current ? "page" : undefined}>${page.nav}<${Badge} problems=${problems} /></a>`;
  })}</nav>`;
}

/** How many problems there are that are not silenced. */
function Badge({ problems }) {
  const words = `${problems.length} ${problems.length === 1 ? "problem" : "problems"}`;
  return (
    problems.length > 0 &&
    html` <span class=${`badge ${problems[0].level}`} role="img" aria-label=${words}>${problems.length}</span>`
  );
}

/** A page whose module is there: {page, View, error}. */
const loadedOf = async (page) => ({ page, View: (await page.load()).default, error: null });
let first = { page: null, View: null, error: null }; // the page of the first address

function Page({ names, params }) {
  const page = pageOf(names);
  const [loaded, setLoaded] = useState(first);
  useLayoutEffect(() => {
    if (!page || (loaded.page === page && loaded.View)) return;
    let isOld = false;
    loadedOf(page).then(
      (found) => {
        if (!isOld) setLoaded(found);
      },
      (error) => {
        if (!isOld) setLoaded({ page, View: null, error });
      },
    );
    return () => {
      isOld = true;
    };
  }, [page]);
  useEffect(() => {
    document.title = page ? `${names.slice(1).join(" › ") || page.title} · Penstock` : "Penstock";
  }, [page, names.join("/")]);
  if (!page)
    return html`<h1>Nothing here</h1><p>There is no page <code>${names.join("/")}</code>. <a href=${href(["overview"])}>Overview</a></p>`;
  if (loaded.page !== page) return html`<h1>${page.title}</h1>`;
  if (loaded.error) return html`<h1>${page.title}</h1><${Problem} error=${loaded.error} />`;
  return html`<${loaded.View} key=${names.join("\n")} names=${names} params=${params} vhost=${params.vhost} />`;
}

hidden.follow((isHidden) => {
  if (!isHidden && user.value) whoami();
});

/** Draws the shell with the page in it: both have been asked for by first.js. */
async function begin() {
  const page = pageOf(route.value.names);
  const [found] = await Promise.allSettled([page && loadedOf(page), whoami()]);
  if (found.value) first = found.value; // otherwise Page says why
  render(html`<${App} />`, document.getElementById("app"));
}

begin();
