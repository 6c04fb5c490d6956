// What colours and patterns mean, as they are used at the moment.

function entry(style, text) {
  const made = element("span", "", "entry");
  made.append(swatchOf(style), text);
  return made;
}

function plain(colour) {
  return { fill: colour, pattern: null };
}

function fillLegend() {
  const tone = theme();
  const entries = [];
  const kinds = new Set(view.kind);
  if (state.colour === "module") {
    view.modules.forEach((module, number) => entries.push(entry(plain(moduleColour(number)), module)));
  } else if (state.colour === "microbatch") {
    const numbers = [...new Set(view.microbatch)].sort((a, b) => a - b);
    for (const number of numbers.slice(0, OKABE_ITO.length)) entries.push(entry(plain(OKABE_ITO[number % OKABE_ITO.length]), `microbatch ${number}`));
    if (numbers.length > OKABE_ITO.length) entries.push(element("span", "then again from the first colour; numbers are in the stages"));
  } else {
    for (const [level, text] of [[0, "half as long or less"], [2, "shorter than planned"], [4, "as planned"], [6, "longer"], [8, "twice as long or more"]]) {
      entries.push(entry(plain(SLOWER[level]), text));
    }
  }
  const grey = state.colour === "module" && view.modules.length === 1 ? moduleColour(0) : "#8a949d";
  for (const kind of kinds) entries.push(entry(styleOf(grey, kind), KIND_NAMES[kind]));
  const { causes, explanation } = mainTrack();
  if (causes.length) entries.push(element("span", "bubbles:", "soft"));
  else entries.push(entry({ fill: tone.back, pattern: patternOf(1, tone.gap) }, "bubble"));
  const total = causes.reduce((sum, own) => sum + own.sum, 0);
  for (const { cause, sum } of causes) {
    const made = entry({ fill: tone.back, pattern: causeStyle(cause).pattern }, `${cause} ${seconds(sum, 3)} (${percent(sum / total, 0)})`);
    made.title = causeText(cause);
    entries.push(made);
  }
  if (explanation && state.path) {
    const sign = entry(plain(tone.back), "critical path");
    sign.querySelector("canvas").style.outline = `2px solid ${tone.path}`;
    entries.push(sign);
  }
  document.getElementById("legend").replaceChildren(...entries);
}
