import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { translate } from "../i18n";
import { add, away, change, connect, lastPicture, notice, runs, set, show, state, stop, t, type Run, useLive, useStore } from "../state";
import receipt from "../samples/receipt.png";
import shapes from "../samples/shapes.png";
import sign from "../samples/sign.png";
import { Board } from "./board";
import { Cat } from "./cat";
import { Composer, FileInputs, chooseFiles, openCamera } from "./composer";
import { CameraDialog, KeyDialog, SettingsDialog, TalksDialog } from "./dialogs";
import { Icon } from "./icons";
import { words } from "./stage";
import { StatusDialog } from "./status";
import { TalkView } from "./talk";

const SAMPLES = [
  { name: "receipt", src: receipt, ask: "What is the total price?" },
  { name: "shapes", src: shapes, ask: "Describe the picture." },
  { name: "sign", src: sign, ask: "Read the text." },
] as const;

async function addSample(src: string, name: string, question: string): Promise<void> {
  const blob = await fetch(src).then((r) => (r.ok ? r.blob() : null), () => null);
  if (!blob) {
    notice(t("trouble.unreachable"), true);
    return away();
  }
  add([new File([blob], `${name}.png`, { type: "image/png" })]);
  set({ draft: question });
}

function dark(): boolean {
  const { theme } = state.settings;
  return theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
}

function Top(): JSX.Element {
  const word = { starting: t("app.starting"), ok: t("app.ready"), away: t("app.away"), locked: t("app.locked") }[state.link];
  return (
    <header class="top">
      <button type="button" class="quiet round" aria-label={t("app.talks")} title={t("app.talks")} onClick={() => set({ panel: "talks" })}>
        <Icon name="menu" />
      </button>
      <h1 class="brand">
        <Cat />
        margay
      </h1>
      <button type="button" class={`model is-${state.link}`} onClick={() => (state.link === "ok" ? set({ panel: "status" }) : state.link === "locked" ? set({ panel: "key" }) : void connect())}>
        <i aria-hidden="true" />
        <span class="model-name">{state.props?.model_alias ?? "margay"}</span>{" "}
        <span class="dim">{word}</span>
      </button>
      <nav aria-label="margay">
        <button type="button" class="quiet" lang={state.language === "zh" ? "en" : "zh-CN"} onClick={() => change({ language: state.language === "zh" ? "en" : "zh" })}>
          {translate(state.language, "app.language")}
        </button>
        <button type="button" class="quiet round wide-only" aria-label={t("app.theme")} title={t("app.theme")} onClick={() => change({ theme: dark() ? "light" : "dark" })}>
          <Icon name={dark() ? "sun" : "moon"} />
        </button>
        <button type="button" class="quiet round wide-only" aria-label={t("app.status")} title={t("app.status")} onClick={() => set({ panel: "status" })}>
          <Icon name="pulse" />
        </button>
        <button type="button" class="quiet round" aria-label={t("app.settings")} title={t("app.settings")} onClick={() => set({ panel: "settings" })}>
          <Icon name="gear" />
        </button>
        <button type="button" class="quiet round" aria-label={t("app.new")} title={t("app.new")} onClick={() => void show(null)}>
          <Icon name="plus" />
        </button>
      </nav>
    </header>
  );
}

function Hello({ near }: { near: boolean }): JSX.Element {
  return (
    <section class="hello" aria-labelledby="hello-title">
      <Cat follow wide={near} />
      <h2 id="hello-title">{t("hello.title")}</h2>
      <p>{t("hello.drop")}</p>
      <p class="hello-ways">
        <button type="button" class="go" onClick={chooseFiles}>
          <Icon name="picture" /> {t("hello.choose")}
        </button>
        <button type="button" class="soft" onClick={openCamera}>
          <Icon name="camera" /> {t("hello.camera")}
        </button>
      </p>
      <div class="samples">
        <p class="dim">{t("hello.samples")}</p>
        <ul>
          {SAMPLES.map((s) => (
            <li key={s.name}>
              <button type="button" class="sample" onClick={() => void addSample(s.src, s.name, s.ask)}>
                <img src={s.src} alt="" draggable={false} width="72" height="48" />
                {t(`sample.${s.name}`)}
              </button>
            </li>
          ))}
        </ul>
      </div>
      <p class="dim note">{t("hello.private", { host: location.host })}</p>
      {/* Has its place before it is known whether it is needed. */}
      <p class="dim note demo">{state.props?.model_alias === "margay-demo" && t("hello.demo")}</p>
    </section>
  );
}

/** Drop anywhere, paste anywhere, keys. */
function useGlobalInput(): boolean {
  const [near, setNear] = useState(false);
  const depth = useRef(0);
  useEffect(() => {
    const files = (e: DragEvent) => [...(e.dataTransfer?.types ?? [])].includes("Files");
    const enter = (e: DragEvent) => {
      if (!files(e)) return;
      e.preventDefault();
      depth.current++;
      setNear(true);
    };
    // A link dropped here would take the browser to it.
    const link = (e: DragEvent) => [...(e.dataTransfer?.types ?? [])].includes("text/uri-list") && !(e.target as HTMLElement).matches?.("textarea, input");
    const over = (e: DragEvent) => {
      if (link(e)) e.preventDefault();
      if (!files(e)) return;
      e.preventDefault();
      e.dataTransfer!.dropEffect = "copy";
    };
    const leave = (e: DragEvent) => {
      if (!files(e)) return;
      depth.current = Math.max(0, depth.current - 1);
      if (!depth.current) setNear(false);
    };
    const dropped = (e: DragEvent) => {
      if (!files(e) && link(e)) {
        e.preventDefault();
        notice(t("drop.link"), true);
      }
      if (!files(e)) return;
      e.preventDefault();
      depth.current = 0;
      setNear(false);
      add(e.dataTransfer!.files);
    };
    const paste = (e: ClipboardEvent) => {
      const found = [...(e.clipboardData?.files ?? [])];
      // What is copied from a text program or a table comes as text and as a picture of it.
      const typing = (e.target as HTMLElement).matches?.("input, textarea");
      if (!found.length || (typing && e.clipboardData!.types.includes("text/plain"))) return;
      e.preventDefault();
      add(found);
    };
    const pressed = (e: KeyboardEvent) => {
      const el = e.target as HTMLElement;
      const typing = el.matches?.("input, textarea, select");
      if (e.key === "Escape" && !e.isComposing && !state.panel && state.talk && runs.has(state.talk.id)) stop(state.talk.id);
      else if (e.key === "/" && !typing && !state.panel) {
        e.preventDefault();
        document.getElementById("question")?.focus();
      } else if (e.altKey && !e.ctrlKey && e.code === "KeyN") {
        e.preventDefault();
        void show(null);
      }
    };
    addEventListener("dragenter", enter);
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", dropped);
    addEventListener("paste", paste);
    addEventListener("keydown", pressed);
    return () => {
      removeEventListener("dragenter", enter);
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", dropped);
      removeEventListener("paste", paste);
      removeEventListener("keydown", pressed);
    };
  }, []);
  return near;
}

/** For who can't see it: each stage, and the answer when it is there. It stands before there is anything to say. */
function Said(): JSX.Element {
  const talk = state.talk;
  const run = talk ? runs.get(talk.id) : undefined;
  useLive(run?.live);
  const before = useRef<{ run: Run; stage: string; text: string } | null>(null);
  const was = before.current;
  let text = "";
  if (run) {
    const { progress } = run.live;
    text = was?.run === run && was.stage === progress.stage ? was.text : words(progress);
    before.current = { run, stage: progress.stage, text };
  } else if (was && was.run.talk === talk && was.run.message.state === "done") {
    const answer = was.run.message.text;
    text = answer.length <= 400 ? answer : t("talk.done");
  }
  return <p class="offscreen" role="status" id="said">{text}</p>;
}

export function App(): JSX.Element {
  useStore();
  const near = useGlobalInput();
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const fn = () => set();
    scheme.addEventListener("change", fn);
    return () => scheme.removeEventListener("change", fn);
  }, []);
  const talk = state.talk;
  const hello = !talk?.messages.length && !state.pending.length;
  const board = state.pending.length > 0 || lastPicture(talk) !== null;
  return (
    <div class={`app ${board ? "with-board" : ""} ${hello ? "at-hello" : ""}`}>
      <a class="skip" href="#question">{t("app.skip")}</a>
      <Top />
      {state.link === "away" && <p class="link-banner" role="status">{t("link.away")}</p>}
      <main>
        {board && <Board />}
        <div class="side">
          {hello ? <Hello near={near} /> : <TalkView />}
          <Composer />
        </div>
      </main>
      <FileInputs />
      <Said />
      {near && <div class="veil" aria-hidden="true"><div><Cat wide /><p>{t("drop.here")}</p></div></div>}
      <div class="notices" aria-live="polite">
        {state.notice && <p key={state.notice.n} class={`notice ${state.notice.bad ? "bad" : ""}`}>{state.notice.text}</p>}
      </div>
      {state.panel === "settings" && <SettingsDialog />}
      {state.panel === "status" && <StatusDialog />}
      {state.panel === "talks" && <TalksDialog />}
      {state.panel === "camera" && <CameraDialog />}
      {state.panel === "key" && <KeyDialog />}
    </div>
  );
}
