import { render } from "preact";
import { boot } from "./state";
import { warm } from "./lib/prepare";
import "./style.css";
import { loadMarkdown } from "./ui/answer";
import { App } from "./ui/app";

const root = document.getElementById("page")!;
root.textContent = "";
render(<App />, root);
void boot();
// What only answers need comes once the page stands.
const idle = window.requestIdleCallback ?? ((fn: () => void) => setTimeout(fn, 300));
idle(() => {
  void loadMarkdown();
  warm();
});
