// The whole batch in a strip, drawn once, with the visible window over it; dragging moves the window.

const strip = document.getElementById("minimap");
const stripPen = strip.getContext("2d");
let picture = null;

function drawMinimap() {
  const ratio = window.devicePixelRatio || 1;
  const wide = strip.clientWidth;
  const tall = strip.clientHeight;
  strip.width = Math.round(wide * ratio);
  strip.height = Math.round(tall * ratio);
  picture = document.createElement("canvas");
  picture.width = strip.width;
  picture.height = strip.height;
  const own = picture.getContext("2d");
  own.scale(ratio, ratio);
  const track = mainTrack();
  const tallest = tall / view.ranks;
  // Lanes are drawn by the window's own scale: it is set to the whole batch meanwhile.
  const kept = [state.begin, state.end];
  [state.begin, state.end] = [view.begin, view.end];
  for (let rank = 0; rank < view.ranks; rank++) {
    drawLane(own, track, rank, rank * tallest, Math.max(0.5, tallest - (tallest > 3 ? 1 : 0)), false);
  }
  [state.begin, state.end] = kept;
}

function drawWindow() {
  const ratio = window.devicePixelRatio || 1;
  const tone = theme();
  stripPen.setTransform(1, 0, 0, 1, 0, 0);
  stripPen.fillStyle = tone.back;
  stripPen.fillRect(0, 0, strip.width, strip.height);
  stripPen.drawImage(picture, 0, 0);
  stripPen.scale(ratio, ratio);
  const place = (time) => gutter() + ((time - view.begin) / (view.end - view.begin)) * plotWidth();
  const left = Math.max(gutter(), place(state.begin));
  const right = Math.min(gutter() + plotWidth(), place(state.end));
  const tall = strip.clientHeight;
  stripPen.fillStyle = tone.back;
  stripPen.globalAlpha = 0.72;
  stripPen.fillRect(gutter(), 0, left - gutter(), tall);
  stripPen.fillRect(right, 0, width - right, tall);
  stripPen.globalAlpha = 1;
  stripPen.strokeStyle = tone.ink;
  stripPen.lineWidth = 1.5;
  stripPen.strokeRect(left + 0.75, 0.75, Math.max(3, right - left - 1.5), tall - 1.5);
  stripPen.fillStyle = tone.soft;
  stripPen.font = FONT;
  stripPen.textBaseline = "middle";
  stripPen.fillText(width < NARROW ? "all" : "whole batch", 6, tall / 2);
}

function followStrip(event) {
  const x = event.clientX - strip.getBoundingClientRect().left;
  const time = view.begin + ((x - gutter()) / plotWidth()) * (view.end - view.begin);
  const half = (state.end - state.begin) / 2;
  setWindow(time - half, time + half);
}

strip.addEventListener("pointerdown", (event) => {
  strip.setPointerCapture(event.pointerId);
  followStrip(event);
});
strip.addEventListener("pointermove", (event) => {
  if (strip.hasPointerCapture(event.pointerId)) followStrip(event);
});
strip.addEventListener("dblclick", fit);
