// Parts that only the demo shows: controls, the comparison with Spark's own join, and warehouse queries.
import { count, time } from "./numbers.js";

const at = (id) => document.getElementById(id);

export function say(text, wrong = false) {
  at("said").textContent = text;
  at("said").classList.toggle("wrong", wrong);
}

async function act({ name, label }, value) {
  say(`${label} …`);
  try {
    const answer = await fetch(`controls/${name}`, {
      method: "POST", headers: { "Content-Type": "application/json", "X-Semistream": "page" }, body: JSON.stringify({ value }),
    });
    const told = await answer.json();
    say(told.said ?? told.error, !answer.ok);
  } catch {
    say("The demo does not respond. It may have ended.", true);
  }
}

// Moves a slider to the value that was set here or on another page.
const moved = new Map();

export function move({ name, value }) {
  if (value != null) moved.get(name)?.(value);
}

function control(one) {
  const box = document.createElement("div"), hint = document.createElement("p");
  box.className = `control ${one.kind}`;
  hint.id = `hint-${one.name}`;
  hint.textContent = one.hint;
  if (one.kind === "button") {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = one.label;
    button.setAttribute("aria-describedby", hint.id);
    button.onclick = () => act(one, null);
    box.append(button, hint);
    return box;
  }
  const label = document.createElement("label"), input = document.createElement("input"), shown = document.createElement("output");
  let back = 0;
  const show = () => { shown.textContent = `${Number(input.value)}${one.unit}`; };
  Object.assign(input, { type: "range", min: one.least, max: one.most, step: one.step, id: `control-${one.name}` });
  input.value = one.now;
  input.setAttribute("aria-describedby", hint.id);
  label.htmlFor = input.id;
  label.append(one.label, shown);
  input.oninput = show;
  input.onchange = () => act(one, Number(input.value));
  moved.set(one.name, (value) => {
    input.value = value;
    show();
    clearTimeout(back);
    if (one.seconds && value !== one.value) back = setTimeout(() => moved.get(one.name)(one.value), 1000 * one.seconds);
  });
  show();
  box.append(label, input, hint);
  return box;
}

export function fillControls(controls) {
  at("controls").hidden = !controls.length;
  if (at("control-list").childElementCount !== controls.length) at("control-list").replaceChildren(...controls.map(control));
}

function bar(label, value, most, told, other) {
  const line = document.createElement("div"), name = document.createElement("span"), track = document.createElement("div");
  const fill = document.createElement("i"), number = document.createElement("span");
  line.className = other ? "bar other" : "bar";
  name.textContent = label;
  name.title = label;
  fill.style.width = `${most > 0 ? (100 * value) / most : 0}%`;
  track.append(fill);
  number.textContent = told;
  line.append(name, track, number);
  return line;
}

// {ours, theirs: rows per second, or seconds per batch if `seconds`; note}. Without numbers only the note is shown.
export function fillPitch({ ours, theirs, note, seconds = false }) {
  at("pitch").hidden = false;
  if (ours == null) { at("pitch").textContent = note; return; }
  const strong = document.createElement("strong"), words = document.createElement("p"), bars = document.createElement("div");
  const told = (value) => (seconds ? time(value) : `${count(value)}/s`);
  const gain = seconds ? theirs / ours : ours / theirs;
  strong.textContent = gain >= 1.05 ? `${gain.toFixed(1)} × faster` : gain > 0.95 ? "About as fast" : `${(1 / gain).toFixed(1)} × slower`;
  words.textContent = note;
  bars.className = "bars";
  const most = Math.max(ours, theirs);
  bars.append(bar("semistream", ours, most, told(ours)), bar("Spark's own join", theirs, most, told(theirs), true));
  const text = document.createElement("div");
  text.append(strong, words);
  at("pitch").replaceChildren(text, bars);
}

// [{question, rows: [[label, value, text]]}]
export function fillAnswers(answers) {
  at("answer-list").replaceChildren(...answers.map(({ question, rows }) => {
    const box = document.createElement("div"), title = document.createElement("h3");
    title.textContent = question;
    const most = Math.max(...rows.map((row) => row[1]));
    box.append(title, ...rows.map(([label, value, told]) => bar(label, value, most, told)));
    return box;
  }));
  at("answers").hidden = !answers.length;
}
