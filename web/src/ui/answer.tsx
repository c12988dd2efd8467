/** The text of an answer: finished blocks are made once, only the last is made anew while it grows. */
import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Block, Splitter } from "../lib/split";
import { copy } from "../lib/export";
import { t } from "../state";
import { Icon } from "./icons";

type Render = (text: string) => TrustedHTML | string;
let render: Render | null = null;
let loading: Promise<void> | null = null;

/** Markdown comes in a file of its own, after the page. */
export function loadMarkdown(): Promise<void> {
  loading ??= import("../lib/markdown").then(
    (m) => void (render = m.render),
    () => void (loading = null), // the server is away: plain text until the next answer
  );
  return loading;
}

function CodeBlock({ text, info, more }: { text: string; info: string; more: boolean }): JSX.Element {
  const [copied, setCopied] = useState(false);
  return (
    <div class={`code ${more ? "more" : ""}`}>
      {!more && (
        <div class="code-head">
          <span>{info.split(/\s/)[0]}</span>
          <button
            type="button"
            class="quiet small"
            onClick={async () => {
              setCopied(await copy(text));
              setTimeout(() => setCopied(false), 1500);
            }}
          >
            <Icon name="copy" />
            <span>{t(copied ? "talk.copied" : "talk.copy")}</span>
          </button>
        </div>
      )}
      <pre tabIndex={0} aria-label={info || "code"}>
        <code>{text}</code>
      </pre>
    </div>
  );
}

/** One piece of markup; the sanitizer's result goes in as it is. */
function Html({ block }: { block: Block }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  const html = useMemo(() => (render ? render(block.text) : null), [block.text, render]);
  useLayoutEffect(() => {
    if (!ref.current) return;
    if (html === null) ref.current.textContent = block.text;
    else (ref.current as { innerHTML: unknown }).innerHTML = html;
  }, [html]);
  const kind = block.kind === "table" ? "table-wrap" : "";
  return (
    <div
      ref={ref}
      class={`block ${kind} ${block.more ? "more" : ""}`}
      {...(block.kind === "table" && { tabIndex: 0, role: "group", "aria-label": "table" })}
    />
  );
}

const One = memo(function One({ block }: { block: Block }): JSX.Element {
  return block.kind === "code" ? (
    <CodeBlock text={block.text} info={block.info ?? ""} more={block.more ?? false} />
  ) : (
    <Html block={block} />
  );
});

/** Finished blocks in groups, so that a redraw compares few of them. */
const GROUP = 16;
const Group = memo(
  function Group({ blocks }: { blocks: Block[]; size: number }): JSX.Element {
    return (
      <div class="group">
        {blocks.map((b, i) => (
          <One key={i} block={b} />
        ))}
      </div>
    );
  },
  (a, b) => a.size === b.size,
);

/**
 * However much comes at once (a fast answer, a long one from the store), a frame makes only as many new blocks as it has
 * time for; the next frames make the rest.
 */
export function Blocks({ splitter, live }: { splitter: Splitter; live: boolean }): JSX.Element {
  const [, redraw] = useState(0);
  const shown = useRef({ of: splitter, n: 0, step: 8 });
  const s = shown.current;
  if (s.of !== splitter) shown.current = { of: splitter, n: 0, step: 8 };
  useEffect(() => {
    if (!render) void loadMarkdown().then(() => redraw((n) => n + 1));
  }, []);
  const began = performance.now();
  const total = splitter.done.length;
  const before = shown.current.n;
  const now = Math.min(total, before + shown.current.step);
  useLayoutEffect(() => {
    const at = shown.current;
    at.n = now;
    const cost = performance.now() - began;
    if (now - before >= at.step) at.step = Math.min(64, Math.max(1, cost < 6 ? at.step * 2 : cost > 16 ? at.step >> 1 : at.step));
    if (now >= total) return;
    // Not in the same frame again; a tab in the background has no frames.
    const next = () => redraw((n) => n + 1);
    const frame = requestAnimationFrame(next);
    const timer = setTimeout(next, 200);
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  });
  const groups: Block[][] = [];
  for (let i = 0; i < now; i += GROUP) groups.push(splitter.done.slice(i, Math.min(now, i + GROUP)));
  const tail = live && now === total ? splitter.tail : null;
  return (
    <div class={`prose ${live ? "live" : ""}`} data-whole={now === total}>
      {groups.map((g, i) => (
        <Group key={`${i} ${render !== null}`} blocks={g} size={g.length} />
      ))}
      {tail && <One key="tail" block={tail} />}
    </div>
  );
}
