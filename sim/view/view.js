"use strict";
// Asks for the sections of the page again and again, and replaces those that have changed.
// What comes is HTML in which everything is escaped; the page's policy runs no script but this one.
const EVERY = 2000, EVERY_IF_OVER = 15000, PATIENCE = 30000;
const seen = new Map();
const live = document.getElementById("live");
const baseline = document.getElementById("baseline");
let timer = 0;

function replace(name, html) {
  const section = document.getElementById(name);
  if (section === null || seen.get(name) === html) return;
  seen.set(name, html);
  const open = new Set([...section.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const focused = [...section.querySelectorAll("summary, .scroll, button, a, pre")].indexOf(document.activeElement);
  const scrolled = [...section.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  section.innerHTML = html;
  for (const one of section.querySelectorAll("details")) if (open.has(one.dataset.key)) one.open = true;
  section.querySelectorAll(".scroll").forEach((one, at) => {
    if (at < scrolled.length) [one.scrollLeft, one.scrollTop] = scrolled[at];
  });
  if (focused >= 0) {
    const those = section.querySelectorAll("summary, .scroll, button, a, pre");
    if (focused < those.length) those[focused].focus({preventScroll: true});
  }
}

function offer(labels, chosen) {
  if (baseline === null) {
    if (labels.length > 1) location.reload();
    return;
  }
  const had = [...baseline.options].map((one) => one.value);
  if (had.join("\n") === labels.join("\n")) return;
  baseline.replaceChildren(...labels.map((label) => new Option(label, label, false, label === chosen)));
}

function say(sentence, isStale) {
  if (live.textContent !== sentence) live.textContent = sentence;
  live.classList.toggle("stale", isStale);
}

let chosen = "";

async function look() {
  clearTimeout(timer);
  let every = EVERY;
  try {
    const answer = await fetch("state.json?baseline=" + encodeURIComponent(chosen), {cache: "no-store", signal: AbortSignal.timeout(PATIENCE)});
    if (!answer.ok) throw new Error(answer.statusText);
    const state = await answer.json();
    for (const [name, html] of Object.entries(state.sections)) replace(name, html);
    offer(state.labels, state.baseline);
    document.title = state.title;
    if (state.is_over && !state.is_busy) every = EVERY_IF_OVER;
    say(state.is_over ? "The run is finished." : "This page follows the run.", false);
  } catch {
    say("The program that shows this page does not answer: the page stays as it was.", true);
  }
  timer = setTimeout(look, every);
}

if (baseline !== null) {
  baseline.addEventListener("change", () => { chosen = baseline.value; look(); });
}
document.addEventListener("click", async (event) => {
  if (event.target.id !== "ask-audit") return;
  event.target.disabled = true;
  await fetch("audit", {method: "POST"}).catch(() => undefined);
  look();
});
look();
