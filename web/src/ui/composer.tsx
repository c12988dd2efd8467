import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { translate, type Key } from "../i18n";
import { add, ask, drop, lastPicture, runs, set, state, stop, t } from "../state";
import { Thumb } from "./board";
import { Icon, type IconName } from "./icons";

const PRESETS: { name: "describe" | "read" | "table" | "fields" | "find"; icon: IconName }[] = [
  { name: "describe", icon: "eye" },
  { name: "read", icon: "text" },
  { name: "table", icon: "table" },
  { name: "fields", icon: "braces" },
  { name: "find", icon: "box" },
];

/** The demo model knows English only. */
export function prompt(name: string): string {
  const demo = state.props?.model_alias === "margay-demo";
  return translate(demo ? "en" : state.language, `prompt.${name}` as Key);
}

export function Presets(): JSX.Element {
  const busy = state.talk ? runs.has(state.talk.id) : false;
  return (
    <div class="presets" role="group" aria-label={t("preset.label")}>
      {PRESETS.map((p) => (
        <button key={p.name} type="button" class="preset" aria-disabled={busy} title={prompt(p.name)} onClick={() => !busy && void ask(prompt(p.name))}>
          <Icon name={p.icon} />
          {t(`preset.${p.name}`)}
        </button>
      ))}
    </div>
  );
}

/** Enter that asks. Not the one that takes a word from an input method: 229 is Safari's way to say so. */
export const isEnter = (e: KeyboardEvent): boolean => e.key === "Enter" && !e.shiftKey && !e.isComposing && e.keyCode !== 229;

export function chooseFiles(): void {
  const input = document.getElementById("choose") as HTMLInputElement;
  input.click();
}

export function openCamera(): void {
  // Where the page may not use the camera itself (no secure context), the phone's own camera program can.
  if (typeof navigator.mediaDevices?.getUserMedia === "function") set({ panel: "camera" });
  else (document.getElementById("capture") as HTMLInputElement).click();
}

export function FileInputs(): JSX.Element {
  const take = (e: { currentTarget: HTMLInputElement }) => {
    add(e.currentTarget.files ?? []);
    e.currentTarget.value = "";
  };
  return (
    <>
      <input id="choose" class="offscreen" type="file" tabIndex={-1} aria-hidden="true" multiple accept="image/*,.heic,.heif,.avif" onChange={take} />
      <input id="capture" class="offscreen" type="file" tabIndex={-1} aria-hidden="true" accept="image/*" capture="environment" onChange={take} />
    </>
  );
}

export function Composer(): JSX.Element {
  const ref = useRef<HTMLTextAreaElement>(null);
  const talk = state.talk;
  const run = talk ? runs.get(talk.id) : undefined;
  const any = state.pending.length > 0 || lastPicture(talk) !== null;
  useLayoutEffect(() => {
    const area = ref.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 180)}px`;
  }, [state.draft]);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) ref.current?.focus();
  }, [talk?.id, state.pending.length]);
  const send = () => void ask(state.draft);
  return (
    <form
      class="composer"
      onSubmit={(e) => {
        e.preventDefault();
        send();
      }}
    >
      {any && <Presets />}
      <div class="field">
        {state.pending.length > 0 && (
          <div class="thumbs">
            {state.pending.map((p) => (
              <Thumb key={p.id} id={p.id} pending={p} onRemove={() => drop(p.id)} />
            ))}
          </div>
        )}
        <textarea
          id="question"
          dir="auto"
          ref={ref}
          rows={1}
          aria-label={t("ask.label")}
          aria-describedby="ask-keys"
          placeholder={t(any ? "ask.placeholder" : "ask.placeholder_empty")}
          value={state.draft}
          onInput={(e) => set({ draft: e.currentTarget.value })}
          onKeyDown={(e) => {
            if (isEnter(e)) {
              e.preventDefault();
              if (!run) send();
            }
          }}
        />
        <div class="tools">
          <button type="button" class="quiet round" aria-label={t("ask.add")} title={t("ask.add")} onClick={chooseFiles}>
            <Icon name="picture" />
          </button>
          <button type="button" class="quiet round" aria-label={t("ask.camera")} title={t("ask.camera")} onClick={openCamera}>
            <Icon name="camera" />
          </button>
          <span id="ask-keys" class="hint">{t("ask.keys")}</span>
          {run && talk ? (
            <button type="button" class="send stop" aria-label={t("ask.stop")} title={t("ask.stop")} onClick={() => stop(talk.id)}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="submit" class="send" aria-label={t("ask.send")} title={t("ask.send")} disabled={!state.draft.trim()}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
    </form>
  );
}
