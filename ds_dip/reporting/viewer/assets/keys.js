// Keys: each with what it does, from which the help is made.

const KEYS = [
  ["←  →", "move in time"], ["↑  ↓", "move over the ranks"], ["+  −", "zoom in, out"], ["0", "the whole batch"],
  ["/", "search; Enter and Shift+Enter go through what was found, Esc ends"],
  ["n  p", "next, previous stage of the chosen microbatch"], ["[  ]", "previous, next stage on the rank"],
  ["w", "why then: to the stage that let the chosen one start"], ["Enter", "choose the stage in the middle, or centre the chosen one"],
  ["Esc", "choose nothing"], ["v", "planned, measured, both"], ["c", "next colouring"], ["t", "transfers"], ["m", "memory"],
  ["x", "critical path"], ["d", "light, dark"], ["?", "this help"],
];
const READING = [
  "A row is a rank: its stages in time, planned above measured, joined by lines that are orange where it was late. Colour is the module; a backward is darker with stripes, a weight gradient lighter with dots; the number is the microbatch, and after the dot the sub-microbatch.",
  "Striped or dotted space between stages is a bubble: the rank idles, for a cause that its colour, the legend and the card tell. The share beside the rank's name is how much of its time that is. Outlined stages are the critical path.",
  "Under the stages is the memory that the plan holds on the rank; a dashed line is its capacity.",
  "Wheel or pinch zooms, dragging moves, Shift and wheel moves in time. Click a stage to keep its microbatch in sight, with its transfers and, dashed, what let it start.",
  "Search takes words of module and direction (vision, backward, B) and fields: mb3, mb3.1, r2, c0, s1, #17 for a task. Several words must all fit.",
];

function fillHelp() {
  const dialog = document.getElementById("keys");
  const columns = element("div", "", "columns");
  for (const [key, text] of KEYS) {
    const line = element("p");
    for (const part of key.split("  ")) line.append(element("kbd", part), " ");
    line.append(text);
    columns.append(line);
  }
  const close = element("button", "Close");
  close.type = "button";
  close.addEventListener("click", () => dialog.close());
  const title = element("h2", "How to read this page");
  title.id = "keys-title";
  dialog.replaceChildren(title, ...READING.map((text) => element("p", text)), element("h2", "Keys"), columns, close);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}

function toggleHelp() {
  const dialog = document.getElementById("keys");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

// The stages of a kind that `same` names, in time; goes from the chosen one by `direction`.
function step(direction, same) {
  if (state.selected < 0) return chooseMiddle();
  const track = mainTrack();
  const stages = [];
  for (let stage = 0; stage < view.count; stage++) if (same(stage) && !Number.isNaN(track.start[stage])) stages.push(stage);
  stages.sort((a, b) => track.start[a] - track.start[b] || a - b);
  go(stages[stages.indexOf(state.selected) + direction]);
}

function go(stage) {
  if (stage === undefined || stage < 0) return;
  const track = mainTrack();
  const inside = track.start[stage] >= state.begin && track.end[stage] <= state.end;
  const seen = (track.end[stage] - track.start[stage]) / (state.end - state.begin) * plotWidth() >= 3;
  if (inside && seen) reveal(view.rank[stage]);
  else centre(stage);
  select(stage);
  drawMinimap();
}

// The stage nearest to the middle of what is in sight.
function chooseMiddle() {
  const track = mainTrack();
  const middle = (state.begin + state.end) / 2;
  const [first] = visibleRanks();
  let found = -1;
  let least = Infinity;
  for (let rank = first; rank < view.ranks; rank++) {
    const row = track.rows[rank];
    const place = firstAfter(track, row, middle);
    for (const stage of row.slice(Math.max(0, place - 1), place + 1)) {
      const away = Math.max(track.start[stage] - middle, middle - track.end[stage], 0);
      if (away < least) [found, least] = [stage, away];
    }
  }
  go(found);
}

const ACTIONS = {
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
  ArrowUp: () => { document.getElementById("scroller").scrollTop -= layout.row; },
  ArrowDown: () => { document.getElementById("scroller").scrollTop += layout.row; },
  "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), _: () => zoom(1 / 0.7), 0: fit,
  "/": () => { query.focus(); query.select(); },
  n: () => step(1, (stage) => view.microbatch[stage] === view.microbatch[state.selected]),
  p: () => step(-1, (stage) => view.microbatch[stage] === view.microbatch[state.selected]),
  "]": () => step(1, (stage) => view.rank[stage] === view.rank[state.selected]),
  "[": () => step(-1, (stage) => view.rank[stage] === view.rank[state.selected]),
  w: () => state.selected >= 0 && go(mainTrack().before[state.selected]),
  Enter: () => (state.selected < 0 ? chooseMiddle() : centre(state.selected)),
  Escape: () => { select(-1); drawMinimap(); },
  v: () => cycle("show"), c: () => cycle("colour"), t: () => toggle("transfers"), m: () => toggle("memory"),
  x: () => toggle("path"), d: () => setTheme(!state.dark), "?": toggleHelp,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
  const target = event.target;
  if (target.matches("input, select, textarea")) return;
  // A button or a link in focus keeps the keys that press it.
  if (event.key === "Enter" && target.matches("button, a, summary")) return;
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
  if (state.selected >= 0 && !state.hovered) showCard();
});
