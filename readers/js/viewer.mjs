// A viewer of KDTR files for a web page: everything stays in the browser.
import { parse, payload, values } from "./kdtr.mjs";

const SHOWN = 512; // elements of a tensor that are listed

function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text; // never innerHTML: names in a file are hostile
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function row(table, cells, tag = "td") {
  const line = table.appendChild(element("tr"));
  for (const cell of cells) line.append(cell instanceof Node ? cell : element(tag, String(cell)));
  return line;
}

const show = (value) => (value instanceof Uint8Array ? `${value.length} bytes` : String(value));

function metadata(meta) {
  const table = element("table");
  for (const [key, value] of Object.entries(meta)) row(table, [key, show(value).slice(0, 300)]);
  return table;
}

// Count, least, greatest, mean, NaNs and infinities of a tensor's values.
export function statistics(numbers) {
  const found = { count: numbers.length, min: Infinity, max: -Infinity, mean: 0, nan: 0, inf: 0 };
  let finite = 0, sum = 0;
  for (let x of numbers) {
    x = Number(x);
    if (Number.isNaN(x)) found.nan++;
    else if (!Number.isFinite(x)) found.inf++;
    else {
      finite++;
      sum += x;
      if (x < found.min) found.min = x;
      if (x > found.max) found.max = x;
    }
  }
  found.mean = finite ? sum / finite : NaN;
  return found;
}

function index(flat, shape) {
  const at = [];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    at.unshift(flat % shape[axis]);
    flat = Math.floor(flat / shape[axis]);
  }
  return `[${at.join(", ")}]`;
}

function contents(bytes, tensor) {
  const box = element("div");
  let numbers;
  try {
    numbers = values(bytes, tensor);
  } catch (error) {
    return element("p", error.message, { class: "refused" });
  }
  const s = statistics(numbers);
  box.append(element("p", `${s.count} elements, ${s.nan} NaN, ${s.inf} infinite; least ${s.min}, ` +
    `greatest ${s.max}, mean ${s.mean}`));
  const list = box.appendChild(element("table"));
  row(list, ["index", "value"], "th");
  for (let i = 0; i < Math.min(SHOWN, numbers.length); i++)
    row(list, [index(i, tensor.shape), numbers[i]]);
  if (numbers.length > SHOWN) box.append(element("p", `and ${numbers.length - SHOWN} more`));
  box.append(metadata(tensor.meta));
  return box;
}

// Fill `root` with the file's metadata and tensors; a click on a name shows its values.
export function view(root, name, bytes) {
  root.replaceChildren(element("h3", `${name}, ${bytes.length} bytes`));
  let file;
  try {
    file = parse(bytes);
  } catch (error) {
    root.append(element("p", error.message, { class: "refused" }));
    return;
  }
  const hex = Array.from(file.root, (b) => b.toString(16).padStart(2, "0")).join("");
  root.append(element("p", `kdtr1:${hex}`), metadata(file.meta));
  const table = root.appendChild(element("table"));
  row(table, ["tensor", "type", "shape", "bytes", "role", "payload"], "th");
  for (const tensor of file.tensors) {
    let state = "ok";
    try {
      payload(bytes, tensor);
    } catch (error) {
      state = error.message;
    }
    const open = element("button", tensor.name);
    const line = row(table, [open, tensor.dtype, `[${tensor.shape.join(", ")}]`, tensor.nbytes,
      tensor.meta.role ?? "", state]);
    open.addEventListener("click", () => {
      if (line.nextSibling?.className === "contents") return line.nextSibling.remove();
      const below = element("tr", "", { class: "contents" });
      const cell = below.appendChild(element("td", "", { colspan: "6" }));
      cell.append(contents(bytes, tensor));
      line.after(below);
    });
  }
}

// Let the user choose or drop a file.
export function attach(input, root) {
  const read = async (file) => view(root, file.name, new Uint8Array(await file.arrayBuffer()));
  input.addEventListener("change", () => input.files[0] && read(input.files[0]));
  root.addEventListener("dragover", (event) => event.preventDefault());
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) read(event.dataTransfer.files[0]);
  });
}
