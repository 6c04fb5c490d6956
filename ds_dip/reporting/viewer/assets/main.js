// Puts the page together, and switches what is shown.

const COLOURS = [["module", "module"], ["microbatch", "microbatch"], ["difference", "measured / planned"]];

function setTheme(dark) {
  state.dark = dark;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  changed();
}

// After what changes how stages look.
function changed() {
  restyle();
  fillLegend();
  fillTexts();
  relayout();
  drawMinimap();
  showCard();
  redraw();
}

function choicesOf(name) {
  if (name === "show") return view.tracks.length === 2 ? ["both", "planned", "measured"] : [view.tracks[0].name];
  return COLOURS.map(([value]) => value).filter((value) => value !== "difference" || view.tracks.length === 2);
}

function setChoice(name, value) {
  state[name] = value;
  state.hovered = null;
  fillControls();
  changed();
  if (name === "show") search(query.value);
}

function cycle(name) {
  const choices = choicesOf(name);
  setChoice(name, choices[(choices.indexOf(state[name]) + 1) % choices.length]);
}

function toggle(name) {
  state[name] = !state[name];
  fillControls();
  changed();
}

function fillControls() {
  for (const name of ["transfers", "memory", "path"]) document.getElementById(name).setAttribute("aria-pressed", String(state[name]));
  document.getElementById("path").hidden = view.tracks.every((track) => track.path.length === 0);
  document.getElementById("memory").hidden = view.memory.length === 0;
  const choices = choicesOf("show");
  const buttons = choices.length < 2 ? [] : choices.map((value) => {
    const button = element("button", value[0].toUpperCase() + value.slice(1));
    button.type = "button";
    button.title = "Planned, measured, both (v)";
    button.dataset.show = value;
    button.setAttribute("aria-pressed", String(state.show === value));
    button.addEventListener("click", () => setChoice("show", value));
    return button;
  });
  const show = document.getElementById("show");
  const focused = show.contains(document.activeElement) ? state.show : null;
  show.replaceChildren(...buttons);
  if (focused) show.querySelector(`[data-show="${focused}"]`).focus();
  const colour = document.getElementById("colour");
  colour.replaceChildren(...choicesOf("colour").map((value) => new Option(COLOURS.find(([own]) => own === value)[1], value)));
  colour.value = state.colour;
}

// Shows one of the views.
function open(number) {
  state.number = number;
  view = viewOf(number);
  state.selected = -1;
  state.hovered = null;
  if (!choicesOf("show").includes(state.show)) state.show = choicesOf("show")[0];
  if (!choicesOf("colour").includes(state.colour)) state.colour = "module";
  document.getElementById("view-name").textContent = report.title.endsWith(view.name) ? "" : view.name;
  fillFacts(document.getElementById("facts"), view.facts);
  fillNotes();
  fillTables();
  fillControls();
  fit();
  restyle();
  search(query.value);
  changed();
  markStep();
  sizeScroller();
}

function fillNotes() {
  const notes = document.getElementById("notes");
  const lines = report.notes.map((text) => element("li", text));
  if (view.warning) lines.unshift(element("li", view.warning, "warning"));
  notes.hidden = lines.length === 0;
  notes.replaceChildren(...lines);
}

// As tall as its ranks need, within the window.
function sizeScroller() {
  const scroller = document.getElementById("scroller");
  const lanes = view.tracks.length;
  const wanted = AXIS + view.ranks * (lanes * 34 + (lanes - 1) * SLIP + GAP + (view.memory.length ? MEMORY + BETWEEN : 0)) + 8;
  const room = window.innerHeight - strip.getBoundingClientRect().bottom - window.scrollY - 40;
  scroller.style.height = `${Math.round(Math.max(220, Math.min(wanted, Math.max(room, 0.55 * window.innerHeight))))}px`;
  resize();
}

for (const name of ["transfers", "memory", "path"]) document.getElementById(name).addEventListener("click", () => toggle(name));
document.getElementById("colour").addEventListener("change", (event) => setChoice("colour", event.target.value));
document.getElementById("zoom-in").addEventListener("click", () => zoom(0.7));
document.getElementById("zoom-out").addEventListener("click", () => zoom(1 / 0.7));
document.getElementById("fit").addEventListener("click", fit);
document.getElementById("theme").addEventListener("click", () => setTheme(!state.dark));
document.getElementById("help").addEventListener("click", toggleHelp);

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", (event) => setTheme(event.matches));
window.addEventListener("resize", sizeScroller);

fillHelp();
fillSteps();
state.dark = prefersDark.matches;
document.documentElement.dataset.theme = state.dark ? "dark" : "light";
open(state.number);

// For scripts that drive the page: what is shown, and where things are in the window.
window.dipReport = {
  state,
  get view() { return view; },
  select, centre, redraw,
  window: setWindow,
  // A moment of a rank, in its lane of a track.
  moment(rank, time, name = mainTrack().name) {
    const number = shownTracks().findIndex((track) => track.name === name);
    const box = canvas.getBoundingClientRect();
    return { x: box.left + xOf(time), y: box.top + laneTop(rank, number) + layout.lane / 2 };
  },
  // The middle of a stage.
  place(stage, name = mainTrack().name) {
    const track = view.tracks.find((own) => own.name === name);
    return this.moment(view.rank[stage], (track.start[stage] + track.end[stage]) / 2, name);
  },
};
