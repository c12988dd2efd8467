/** The pictures, large, with what was found drawn over them. */
import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type BoxReader, type Found, colours, readBoxes } from "../lib/boxes";
import { colour } from "../lib/export";
import type { Message, Picture } from "../lib/types";
import { type Pending, pendingOf, picturesOf, pictureNow, pictureUrl, picture, drop, runs, set, state, t, useLive } from "../state";
import { Icon } from "./icons";

export function bytes(n: number): string {
  return n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} kB` : `${(n / 1e6).toFixed(1)} MB`;
}

/** The answer whose boxes belong over this picture: the last one about it that found any. */
function finder(id: string): { message: Message; found: Found[] } | null {
  const talk = state.talk;
  if (!talk) return null;
  for (let i = talk.messages.length - 1; i >= 0; i--) {
    const m = talk.messages[i]!;
    if (m.role !== "assistant" || !picturesOf(talk, m).includes(id)) continue;
    const run = runs.get(talk.id);
    const found = run?.message === m ? run.live.boxes.found : boxesOf(m.text);
    if (found.length) return { message: m, found };
  }
  return null;
}

const known = new Map<string, BoxReader>();
export function readerOf(text: string): BoxReader {
  let reader = known.get(text);
  if (!reader) {
    if (known.size > 50) known.clear();
    known.set(text, (reader = readBoxes(text)));
  }
  return reader;
}
const boxesOf = (text: string): Found[] => (text.includes("{") ? readerOf(text).found : []);

export interface ObjectProps {
  f: Found;
  colour: string;
  lit: boolean;
  message: string;
  index: number;
}

/** What lights up an object while the pointer or the focus is on it. */
export const light = ({ message, index }: ObjectProps) => ({
  on: () => set({ hover: { message, index } }),
  off: () => set({ hover: null }),
});

/** Each on its own, so that one that lights up does not cost two thousand others. */
const Shape = memo(function Shape(props: ObjectProps): JSX.Element | null {
  const { f, colour, lit } = props;
  if (f.kind !== "box") return null;
  const [x1 = 0, y1 = 0, x2 = 0, y2 = 0] = f.at;
  const place = { x: x1, y: y1, width: x2 - x1, height: y2 - y1 };
  const { on, off } = light(props);
  return (
    <g class={lit ? "lit" : ""}>
      <rect class="under" {...place} />
      <rect class="line" {...place} stroke={colour} fill={colour} onPointerEnter={on} onPointerLeave={off} />
    </g>
  );
});

const Tag = memo(function Tag(props: ObjectProps): JSX.Element {
  const { f, colour, lit } = props;
  const { on, off } = light(props);
  return (
    <span
      class={`tag ${f.kind} ${lit ? "lit" : ""} ${f.at[1]! < 60 ? "inside" : ""} ${f.at[0]! > 500 ? "left" : ""}`}
      style={{ ...beside(f), top: `${f.at[1]! / 10}%`, "--c": colour }}
      onPointerEnter={on}
      onPointerLeave={off}
    >
      {f.kind === "point" && <i />}
      {f.label && <b dir="auto">{f.label}</b>}
    </span>
  );
});

/** Labels stay within the picture: in its right half they end where their box does. */
function beside(f: Found): Record<string, string> {
  const [x1 = 0, , x2 = x1] = f.at;
  return x1 > 500 ? { right: `${(1000 - x2) / 10}%`, maxWidth: `${x2 / 10}%` } : { left: `${x1 / 10}%`, maxWidth: `${(1000 - x1) / 10}%` };
}

function Overlay({ message, found }: { message: Message; found: Found[] }): JSX.Element {
  const number = colours(found);
  const lit = state.hover?.message === message.id ? state.hover.index : -1;
  const props = (f: Found, index: number): ObjectProps => ({ f, index, colour: colour(number[index]!), lit: index === lit, message: message.id });
  return (
    <div class={`overlay ${lit >= 0 ? "some-lit" : ""}`}>
      <svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">
        {found.map((f, i) => (
          <Shape key={i} {...props(f, i)} />
        ))}
      </svg>
      {found.map((f, i) => (
        <Tag key={i} {...props(f, i)} />
      ))}
    </div>
  );
}

function Large({ id, pending }: { id: string; pending: Pending | undefined }): JSX.Element | null {
  const [, redraw] = useState(0);
  const p = pending?.picture ?? pictureNow(id);
  const [natural, setNatural] = useState<{ w: number; h: number } | null>(null);
  const talk = state.talk;
  const run = talk ? runs.get(talk.id) : undefined;
  useLive(run?.live);
  useEffect(() => {
    setNatural(null);
    if (!p && !pending) void picture(id).then(() => redraw((n) => n + 1));
  }, [id]);
  const src = p && (p.width || !pending) ? pictureUrl(p) : pending?.preview;
  if (!src) return null;
  const hidden = p && !p.width;
  const w = p?.width || natural?.w || 4;
  const h = p?.height || natural?.h || 3;
  const found = state.boxes && !pending ? finder(id) : null;
  const name = p?.name ?? pending?.name ?? "";
  return (
    <figure class="large">
      {hidden ? (
        <div class="no-preview">
          <Icon name="picture" />
          <p>{t("board.no_preview", { format: p.format.toUpperCase() })}</p>
        </div>
      ) : (
        <div class={`frame ${pending && !pending.picture ? "working" : ""}`} style={{ "--ratio": String(w / h), "--w": String(w) }}>
          <img
            src={src}
            alt={name}
            draggable={false}
            onLoad={(e) => setNatural({ w: e.currentTarget.naturalWidth, h: e.currentTarget.naturalHeight })}
          />
          {found && <Overlay message={found.message} found={found.found} />}
        </div>
      )}
      <figcaption>
        <bdi class="name">{name}</bdi>
        {p && p.width > 0 && <span class="dim">{sizes(p)}</span>}
        {!pending && finder(id) && (
          <label class="check">
            <input type="checkbox" checked={state.boxes} onChange={(e) => set({ boxes: e.currentTarget.checked })} />
            {t("board.boxes")}
          </label>
        )}
      </figcaption>
    </figure>
  );
}

function sizes(p: Picture): string {
  const values = { width: p.width, height: p.height, fromWidth: p.fromWidth, fromHeight: p.fromHeight, size: bytes(p.blob.size) };
  return t(p.width === p.fromWidth && p.height === p.fromHeight ? "board.plain" : "board.shrunk", values);
}

export function Thumb({ id, pending, onRemove }: { id: string; pending?: Pending | undefined; onRemove?: () => void }): JSX.Element | null {
  const [, redraw] = useState(0);
  const p = pending?.picture ?? pictureNow(id);
  useEffect(() => {
    if (!p && !pending) void picture(id).then(() => redraw((n) => n + 1));
  }, [id]);
  const src = pending?.preview ?? (p && p.width ? pictureUrl(p) : undefined);
  const name = p?.name ?? pending?.name ?? "";
  return (
    <span class={`thumb ${pending && !pending.picture ? "working" : ""}`}>
      <button type="button" class={`pick ${state.shown === id ? "chosen" : ""}`} aria-pressed={state.shown === id} aria-label={t("board.picture", { name })} title={name} onClick={() => set({ shown: id })}>
        {src && !(p && !p.width) ? <img src={src} alt="" draggable={false} /> : <Icon name="picture" />}
      </button>
      {onRemove && (
        <button type="button" class="remove" aria-label={t("board.remove", { name })} onClick={onRemove}>
          <Icon name="close" />
        </button>
      )}
    </span>
  );
}

export function Board(): JSX.Element | null {
  const talk = state.talk;
  const strip = useRef<HTMLDivElement>(null);
  const ids = useMemo(() => [...new Set(talk?.messages.flatMap((m) => m.pictures) ?? [])], [talk, talk?.messages.length, state.shown]);
  const pending = state.pending;
  const all = [...ids.filter((id) => !pending.some((p) => p.id === id)), ...pending.map((p) => p.id)];
  if (!all.length) return null;
  const shown = state.shown && all.includes(state.shown) ? state.shown : all.at(-1)!;
  return (
    <section class="board" aria-label={t("board.title")}>
      <Large key={shown} id={shown} pending={pendingOf(shown)} />
      {all.length > 1 && (
        <div class="strip" ref={strip}>
          {all.map((id) => {
            const waiting = pending.find((p) => p.id === id);
            return <Thumb key={id} id={id} pending={waiting} />;
          })}
        </div>
      )}
    </section>
  );
}

export { drop };
