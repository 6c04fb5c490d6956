// Mouse, pen and fingers: hover, drag to move, wheel and pinch to zoom, click to choose.

const fingers = new Map();
let dragged = 0;

function placeOf(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function hover() {
  const at = state.pointer;
  state.hovered = at ? hit(at.x, at.y) : null;
  showCard();
  redraw();
}

canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, placeOf(event));
  if (fingers.size === 1) dragged = 0;
});

canvas.addEventListener("pointermove", (event) => {
  const now = placeOf(event);
  const before = fingers.get(event.pointerId);
  state.pointer = now;
  if (before) {
    const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    if (others.length) {
      const apart = (at) => Math.max(8, Math.abs(at.x - others[0].x));
      zoom(apart(before) / apart(now), timeAt((now.x + others[0].x) / 2));
    }
    setWindow(...[state.begin, state.end].map((time) => time - (now.x - before.x) / plotWidth() * (state.end - state.begin)));
    document.getElementById("scroller").scrollTop -= now.y - before.y;
    dragged += Math.hypot(now.x - before.x, now.y - before.y);
    fingers.set(event.pointerId, now);
  }
  if (before && dragged > 4) {
    state.hovered = null;
    showCard();
  } else hover();
});

function lift(event) {
  const held = fingers.delete(event.pointerId);
  if (!held || event.type === "pointercancel" || dragged > 4) return;
  const found = hit(...Object.values(placeOf(event)));
  select(found && found.what === "stage" && found.stage !== state.selected ? found.stage : -1);
  drawMinimap();
}

canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);
canvas.addEventListener("pointerleave", () => {
  state.pointer = null;
  hover();
});
canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(placeOf(event).x)));

canvas.addEventListener(
  "wheel",
  (event) => {
    const at = placeOf(event);
    // Over the labels the wheel scrolls the ranks, as it does everywhere else on the page.
    if (at.x < gutter()) return;
    event.preventDefault();
    const size = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? height : 1;
    const across = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) pan((across * size) / plotWidth());
    else zoom(Math.exp(event.deltaY * size * (event.ctrlKey ? 0.01 : 0.0018)), timeAt(at.x));
    state.pointer = at;
    hover();
  },
  { passive: false },
);

document.getElementById("scroller").addEventListener("scroll", () => hover());
