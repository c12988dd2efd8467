/** The conversation: questions, answers, what can be done with them. */
import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { type Found, colours, isOnlyBoxes, toCsv, toJson } from "../lib/boxes";
import { annotated, colour, copy, download } from "../lib/export";
import type { Message, Report, Talk } from "../lib/types";
import { type Run, edit, notice, pendingOf, picture, picturesOf, pictureNow, retry, runs, set, state, stop, t, trouble, useLive } from "../state";
import { splitterOf } from "../lib/split";
import { Blocks } from "./answer";
import { type ObjectProps, Thumb, light, readerOf } from "./board";
import { isEnter } from "./composer";
import { Icon } from "./icons";
import { StageLine } from "./stage";

function seconds(ms: number): string {
  return ms < 950 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
}

function Meta({ report }: { report: Report }): JSX.Element {
  const { timings, images } = report;
  const parts: JSX.Element[] = [];
  const put = (kind: string, text: string) => parts.push(<span key={kind} class={`chip ${kind}`}>{text}</span>);
  if (report.cache === "exact" || report.cache === "near") put("kept", t("meta.kept"));
  if (timings) put("first", t("meta.first", { seconds: seconds(timings.first_token_ms) }));
  if (images?.length) {
    if (images.every((i) => i.cache === "hit")) put("reused", t("meta.reused"));
    else put("looked", t("meta.looked", { seconds: seconds(images.reduce((s, i) => s + i.vision_ms, 0)) }));
  }
  if (timings && timings.cache_n > 0) put("cached", t("meta.cached", { n: timings.cache_n, total: timings.cache_n + timings.prompt_n }));
  if (timings) put("tokens", t("meta.tokens", { n: timings.predicted_n }));
  if (timings && timings.predicted_n > 1 && timings.predicted_per_second > 0)
    put("speed", t("meta.speed", { speed: timings.predicted_per_second.toFixed(timings.predicted_per_second < 10 ? 1 : 0) }));
  if (report.varied) put("varied", t("talk.varied"));
  return <div class="meta">{parts}</div>;
}

const ObjectButton = memo(function ObjectButton(props: ObjectProps): JSX.Element {
  const { f, colour, lit } = props;
  const { on, off } = light(props);
  return (
    <button type="button" class={`object ${lit ? "lit" : ""}`} style={{ "--c": colour }} onPointerEnter={on} onPointerLeave={off} onFocus={on} onBlur={off}>
      <i />
      <bdi>{f.label || (f.kind === "box" ? "□" : "•")}</bdi>
    </button>
  );
});

function FoundList({ message, found, cut }: { message: Message; found: Found[]; cut: boolean }): JSX.Element {
  const number = colours(found);
  const lit = state.hover?.message === message.id ? state.hover.index : -1;
  return (
    <div class="found">
      <p class="found-head">
        <Icon name="box" /> {t("talk.boxes", { n: found.length })}
        {cut && <span class="dim"> · {t("talk.cut")}</span>}
      </p>
      <ul>
        {found.map((f, i) => (
          <li key={i}>
            <ObjectButton f={f} colour={colour(number[i]!)} lit={i === lit} message={message.id} index={i} />
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The answer's own text, each object linked to its box. */
function Source({ message, found }: { message: Message; found: Found[] }): JSX.Element {
  const parts: (string | JSX.Element)[] = [];
  let at = 0;
  found.forEach((f, i) => {
    if (f.start < at) return;
    parts.push(message.text.slice(at, f.start));
    const lit = state.hover?.message === message.id && found[state.hover.index]?.start === f.start;
    parts.push(
      <span
        key={i}
        class={`source-object ${lit ? "lit" : ""}`}
        onPointerEnter={() => set({ hover: { message: message.id, index: i } })}
        onPointerLeave={() => set({ hover: null })}
      >
        {message.text.slice(f.start, f.end)}
      </span>,
    );
    at = f.end;
  });
  parts.push(message.text.slice(at));
  return (
    <details class="source">
      <summary>{t("talk.source")}</summary>
      <pre tabIndex={0}>
        <code>{parts}</code>
      </pre>
    </details>
  );
}

async function exportFound(kind: "json" | "csv" | "png", talk: Talk, message: Message, found: Found[]): Promise<void> {
  const ids = picturesOf(talk, message);
  const id = state.shown && ids.includes(state.shown) ? state.shown : ids[0];
  const p = id ? await picture(id) : null;
  if (!p) return;
  const stem = p.name.replace(/\.\w+$/, "") || "picture";
  const size = { name: p.name, width: p.fromWidth || 1000, height: p.fromHeight || 1000 };
  if (kind === "json") download(`${stem}.boxes.json`, toJson(found, size), "application/json");
  else if (kind === "csv") download(`${stem}.boxes.csv`, toCsv(found, size), "text/csv");
  else
    try {
      download(`${stem}.boxes.png`, await annotated(p.blob, found));
    } catch {
      notice(t("trouble.picture_damaged", { name: p.name }), true);
    }
}

function Actions({ talk, message, found }: { talk: Talk; message: Message; found: Found[] }): JSX.Element {
  const last = talk.messages.at(-1) === message;
  const busy = runs.has(talk.id);
  const whole = message.state === "done";
  return (
    <div class="actions">
      {message.text && (
        <button type="button" class="quiet" onClick={async () => (await copy(message.text)) && notice(t("talk.copied"))}>
          <Icon name="copy" />
          <span>{t("talk.copy")}</span>
        </button>
      )}
      {last && !busy && (
        <button type="button" class={whole ? "quiet" : "go"} onClick={() => void retry(talk)}>
          <Icon name="again" />
          <span>{t(whole ? "talk.again" : "talk.retry")}</span>
        </button>
      )}
      {found.length > 0 && whole && (
        <span class="exports" role="group" aria-label={t("talk.export")}>
          <Icon name="down" />
          <button type="button" class="quiet" onClick={() => void exportFound("json", talk, message, found)}>JSON</button>
          <button type="button" class="quiet" onClick={() => void exportFound("csv", talk, message, found)}>CSV</button>
          <button type="button" class="quiet" onClick={() => void exportFound("png", talk, message, found)}>{t("talk.png")}</button>
        </span>
      )}
    </div>
  );
}

function Ending({ message }: { message: Message }): JSX.Element | null {
  const { report } = message;
  if (message.state === "stopped")
    return <p class="ending">{message.trouble ? trouble(message.trouble) : t("talk.stopped")}</p>;
  if (message.state === "failed" && message.trouble)
    return (
      <div class="ending bad" role="alert">
        <p>{trouble(message.trouble)}</p>
        {message.trouble.text && !trouble(message.trouble).includes(message.trouble.text) && (
          <details>
            <summary>{t("trouble.details")}</summary>
            <p>{message.trouble.text}</p>
          </details>
        )}
      </div>
    );
  if (report?.detail === "repetition") return <p class="ending">{t("talk.repetition")}</p>;
  if (report?.finish === "length") return <p class="ending">{t("talk.length")}</p>;
  if (message.state === "done" && !message.text.trim()) return <p class="ending">{t("talk.empty")}</p>;
  return null;
}

function AnswerView({ message, talk, run }: { message: Message; talk: Talk; run: Run | undefined }): JSX.Element {
  useLive(run?.live);
  const text = run ? run.live.text : message.text;
  const boxes = run ? run.live.boxes : text.includes("{") ? readerOf(text) : null;
  const reader = boxes?.found.length ? boxes : null;
  const found = reader?.found ?? [];
  const only = reader !== null && isOnlyBoxes(text, reader);
  const elsewhere = !run && message.state === "running";
  return (
    <>
      {!only && text && <Blocks key="text" splitter={run ? run.live.splitter : splitterOf(message)} live={run !== undefined} />}
      {reader && <FoundList key="found" message={message} found={found} cut={!run && reader.unfinished} />}
      {run ? (
        <StageLine key="stage" run={run} pictures={picturesOf(talk, message).length > 0} />
      ) : (
        <>
          {only && <Source message={message} found={found} />}
          {elsewhere ? <p class="ending">{t("talk.elsewhere")}</p> : <Ending message={message} />}
          {message.report && <Meta report={message.report} />}
          {!elsewhere && <Actions talk={talk} message={message} found={found} />}
        </>
      )}
    </>
  );
}

function Question({ message, talk }: { message: Message; talk: Talk }): JSX.Element {
  const [editing, setEditing] = useState(false);
  const ref = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (editing) ref.current?.focus();
  }, [editing]);
  const done = () => {
    setEditing(false);
    if (ref.current) void edit(talk, message, ref.current.value);
  };
  return (
    <article class="question" aria-label={t("talk.you")}>
      {message.pictures.length > 0 && (
        <div class="thumbs">
          {message.pictures.map((id) => (
            <Thumb key={id} id={id} pending={pendingOf(id)} />
          ))}
        </div>
      )}
      {editing ? (
        <form
          class="edit"
          onSubmit={(e) => {
            e.preventDefault();
            done();
          }}
        >
          <textarea
            ref={ref}
            aria-label={t("talk.edit")}
            defaultValue={message.text}
            rows={3}
            onKeyDown={(e) => {
              if (isEnter(e)) {
                e.preventDefault();
                done();
              }
              if (e.key === "Escape") {
                e.stopPropagation();
                setEditing(false);
              }
            }}
          />
          <div class="row">
            <button type="button" class="quiet" onClick={() => setEditing(false)}>{t("talk.edit_cancel")}</button>
            <button type="submit" class="go">{t("talk.edit_done")}</button>
          </div>
        </form>
      ) : (
        <div class="bubble">
          <p dir="auto">{message.text}</p>
          {!runs.has(talk.id) && (
            <button type="button" class="pen" aria-label={t("talk.edit")} title={t("talk.edit")} onClick={() => setEditing(true)}>
              <Icon name="pen" />
            </button>
          )}
        </div>
      )}
    </article>
  );
}

interface ItemProps {
  message: Message;
  talk: Talk;
  run: Run | undefined;
  text: string;
  /** All else of the page that this message's looks depend on. */
  mark: string;
}

function markOf(talk: Talk, m: Message): string {
  const hover = state.hover?.message === m.id ? state.hover.index : -1;
  const shown = state.shown && m.pictures.includes(state.shown) ? state.shown : "";
  const there = m.pictures.map((id) => (pictureNow(id) ? 1 : pendingOf(id) ? 2 : 0)).join("");
  return [state.language, hover, shown, there, m.pictures.length, m.state, runs.has(talk.id), talk.messages.at(-1) === m].join(" ");
}

/** In a long conversation a key that is pressed must not cost all of its messages. */
const Item = memo(
  function Item({ message, talk, run }: ItemProps): JSX.Element {
    if (message.role === "user") return <Question message={message} talk={talk} />;
    return (
      <article class={`answer is-${message.state}`} aria-label={t("talk.margay")} aria-busy={message.state === "running"}>
        <AnswerView message={message} talk={talk} run={run} />
      </article>
    );
  },
  (a, b) => a.message === b.message && a.talk === b.talk && a.run === b.run && a.text === b.text && a.mark === b.mark,
);

export function TalkView(): JSX.Element {
  const talk = state.talk;
  const run = talk ? runs.get(talk.id) : undefined;
  const box = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  useEffect(() => {
    const el = box.current;
    if (!el) return;
    const onScroll = () => (stuck.current = el.scrollHeight - el.scrollTop - el.clientHeight < 60);
    el.addEventListener("scroll", onScroll, { passive: true });
    return () => el.removeEventListener("scroll", onScroll);
  }, []);
  const count = talk?.messages.length ?? 0;
  useLayoutEffect(() => {
    stuck.current = true;
  }, [talk?.id, count]);
  // Follows the answer unless one has scrolled away from it.
  useLayoutEffect(() => {
    const follow = () => {
      if (stuck.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    };
    const seer = new ResizeObserver(follow);
    seer.observe(box.current!.firstElementChild!);
    seer.observe(box.current!);
    return () => seer.disconnect();
  }, []);
  return (
    <div class="thread" ref={box} tabIndex={0} role="region" aria-label={t("talk.title")}>
      <div class="thread-inner">
        {talk?.messages.map((m) => (
          <Item key={m.id} message={m} talk={talk} run={run?.message === m ? run : undefined} text={run?.message === m ? "" : m.text} mark={markOf(talk, m)} />
        ))}
      </div>
    </div>
  );
}

export { stop };
