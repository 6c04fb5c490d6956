// The overview of a run's steps: planned and measured seconds side by side; a step with a timeline can be chosen.

const STEP_HEIGHT = 60;

function fillSteps() {
  const steps = report.steps;
  const section = document.getElementById("run");
  section.hidden = steps.length === 0;
  if (steps.length === 0) return;
  const longest = Math.max(...steps.map((step) => Math.max(plannedOf(step), measuredOf(step) || 0)), Number.MIN_VALUE);
  const buttons = steps.map((step) => stepButton(step, STEP_HEIGHT / longest));
  document.getElementById("steps").replaceChildren(...buttons);
  const fallbacks = steps.filter((step) => step.kind === "fallback").length;
  const keys = [["planned", "planned"], ["measured", "measured"], ["idle", "bubble's share of it"]];
  const legend = keys.map(([kind, text]) => {
    const made = element("span");
    made.append(element("i", "", `key-box ${kind}`), text);
    return made;
  });
  legend.unshift(element("span", `Seconds an iteration of ${steps.length} steps, longest ${seconds(longest)};`));
  legend.push(element("span", `F fallback (${fallbacks}). Choose a step to see its timeline; faint ones have none here.`));
  document.getElementById("steps-legend").replaceChildren(...legend);
  fillFacts(document.getElementById("run-facts"), report.facts);
}

function plannedOf(step) {
  return step.planned_iteration === null ? step.planned : step.planned_iteration;
}

function measuredOf(step) {
  return step.iteration === null ? step.measured : step.iteration;
}

function stepButton(step, scale) {
  const button = element("button");
  button.type = "button";
  button.dataset.step = step.step;
  button.disabled = step.view === null;
  const measured = measuredOf(step);
  const planned = element("span", "", "bar planned");
  planned.style.height = `${Math.max(1, plannedOf(step) * scale)}px`;
  button.append(planned);
  let text = `step ${step.step}: planned ${seconds(plannedOf(step))}`;
  if (measured !== null) {
    const bar = element("span", "", "bar measured");
    bar.style.height = `${Math.max(1, measured * scale)}px`;
    const idle = element("span", "", "idle");
    idle.style.height = `${100 * step.bubble}%`;
    bar.append(idle);
    button.append(bar);
    text += `, measured ${seconds(measured)}`;
  }
  text += `, bubble ${percent(step.bubble)}`;
  if (step.kind === "fallback") {
    button.append(element("span", "F", "fallback"));
    text += `, fallback: ${step.reason || "no reason given"}`;
  }
  button.append(element("span", String(step.step), "number"));
  button.title = text;
  button.setAttribute("aria-label", text);
  button.addEventListener("click", () => open(step.view));
  return button;
}

function markStep() {
  for (const button of document.querySelectorAll("#steps button")) {
    const shown = view.name === `step ${button.dataset.step}`;
    if (shown) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    if (shown) button.parentElement.scrollLeft = button.offsetLeft - button.parentElement.clientWidth / 2;
  }
}

function fillFacts(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value]) => {
      const made = element("div");
      made.append(element("dt", name), element("dd", value));
      return made;
    }),
  );
}
