import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { key } from "../lib/api";
import { DEFAULTS, type Settings } from "../lib/types";
import { add, change, connect, forget, refreshTalks, set, show, state, t, useKey } from "../state";
import { Icon } from "./icons";

export function Dialog({ name, title, children, onClose }: { name: string; title: string; children: ComponentChildren; onClose?: () => void }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  const gone = useRef(false);
  // Not a passive effect: its cleanup would come after the next paint, and keys pressed until then would go nowhere.
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    const dialog = ref.current;
    if (!dialog?.open) dialog?.showModal();
    return () => {
      gone.current = true;
      dialog?.close(); // while it is modal nothing else can have the focus
      before?.focus?.();
    };
  }, []);
  const down = useRef<EventTarget | null>(null);
  const close = () => {
    if (gone.current) return; // its close event comes when another dialog may be open
    if (onClose) onClose();
    else set({ panel: null });
  };
  return (
    <dialog
      ref={ref}
      class={`dialog ${name}`}
      aria-labelledby={`${name}-title`}
      onCancel={(e) => {
        e.preventDefault();
        close();
      }}
      onClose={close} // a browser may close it without asking
      onPointerDown={(e) => (down.current = e.target)}
      // Not when text was marked from within to beside the window.
      onClick={(e) => e.target === e.currentTarget && down.current === e.target && close()}
    >
      <div class="dialog-inner">
        <header>
          <h2 id={`${name}-title`}>{title}</h2>
          <button type="button" class="quiet round" aria-label={t("app.close")} onClick={close}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

function Choice<K extends keyof Settings>({ name, label, options }: { name: K; label: string; options: [Settings[K] & string, string][] }): JSX.Element {
  return (
    <fieldset class="choice">
      <legend>{label}</legend>
      <div class="segments">
        {options.map(([value, text]) => (
          <label key={value}>
            <input type="radio" name={name} value={value} checked={state.settings[name] === value} onChange={() => change({ [name]: value } as Partial<Settings>)} />
            <span>{text}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

export function SettingsDialog(): JSX.Element {
  const s = state.settings;
  return (
    <Dialog name="settings" title={t("set.title")}>
      <h3>{t("set.answer")}</h3>
      <label class="line">
        <span>{t("set.temperature")}<output>{s.temperature.toFixed(1)}</output></span>
        <input type="range" min="0" max="1.5" step="0.1" value={s.temperature} aria-describedby="temperature-help" onInput={(e) => change({ temperature: Number(e.currentTarget.value) })} />
        <small id="temperature-help">{t("set.temperature_help")}</small>
      </label>
      <label class="line">
        <span>{t("set.max")}</span>
        <input type="number" min="1" max="32768" step="1" value={s.maxTokens} onChange={(e) => change({ maxTokens: Math.min(32768, Math.max(1, Math.round(Number(e.currentTarget.value)) || DEFAULTS.maxTokens)) })} />
      </label>
      <label class="line">
        <span>{t("set.system")}</span>
        <textarea rows={2} value={s.system} placeholder={t("set.system_placeholder")} onChange={(e) => change({ system: e.currentTarget.value })} />
      </label>
      <h3>{t("set.picture")}</h3>
      <Choice name="detail" label={t("set.detail")} options={[["low", t("set.detail_low")], ["auto", t("set.detail_auto")], ["high", t("set.detail_high")]]} />
      <label class="line">
        <span>{t("set.prune")}</span>
        <select value={s.prune} onChange={(e) => change({ prune: e.currentTarget.value as Settings["prune"] })}>
          <option value="off">{t("set.prune_off")}</option>
          <option value="exact">{t("set.prune_exact")}</option>
          <option value="near=8">{t("set.prune_near")}</option>
        </select>
      </label>
      <h3>{t("set.page")}</h3>
      <Choice name="theme" label={t("set.theme")} options={[["system", t("set.theme_system")], ["light", t("set.theme_light")], ["dark", t("set.theme_dark")]]} />
      <Choice name="language" label={t("set.language")} options={[["auto", t("set.language_auto")], ["en", "English"], ["zh", "中文"]]} />
      <Choice name="transport" label={t("set.transport")} options={[["auto", t("set.transport_auto")], ["sse", t("set.transport_sse")], ["ws", t("set.transport_ws")]]} />
      <h3>{t("set.keys")}</h3>
      <dl class="keys">
        <dt><kbd>Enter</kbd></dt><dd>{t("set.keys_send")}</dd>
        <dt><kbd>Esc</kbd></dt><dd>{t("set.keys_stop")}</dd>
        <dt><kbd>/</kbd></dt><dd>{t("set.keys_focus")}</dd>
        <dt><kbd>Alt</kbd> <kbd>N</kbd></dt><dd>{t("set.keys_new")}</dd>
        <dt><kbd>Ctrl</kbd> <kbd>V</kbd></dt><dd>{t("set.keys_paste")}</dd>
      </dl>
      <div class="row">
        {key.get() && (
          <button type="button" class="quiet" onClick={() => { key.set(""); set({ panel: null }); void connect(); }}>
            {t("key.forget")}
          </button>
        )}
        <button type="button" class="quiet" onClick={() => change({ ...DEFAULTS })}>{t("set.reset")}</button>
      </div>
    </Dialog>
  );
}

export function KeyDialog(): JSX.Element {
  const [value, setValue] = useState("");
  const [busy, setBusy] = useState(false);
  return (
    <Dialog name="key" title={t("key.title")}>
      <form
        onSubmit={async (e) => {
          e.preventDefault();
          setBusy(true);
          await useKey(value.trim());
          setBusy(false);
        }}
      >
        <p id="key-text">{t("key.text", { host: location.host })}</p>
        <label class="line">
          <span>{t("key.label")}</span>
          <input type="password" autocomplete="off" spellcheck={false} value={value} aria-describedby="key-text" aria-invalid={state.keyWrong} onInput={(e) => setValue(e.currentTarget.value)} autofocus />
        </label>
        {state.keyWrong && <p class="ending bad" role="alert">{t("key.wrong")}</p>}
        <div class="row">
          <button type="submit" class="go" disabled={!value.trim() || busy}>{t("key.go")}</button>
        </div>
      </form>
    </Dialog>
  );
}

export function TalksDialog(): JSX.Element {
  const [gone, setGone] = useState<{ title: string; back: () => Promise<void> } | null>(null);
  const undo = useRef<HTMLButtonElement>(null);
  useEffect(() => void refreshTalks(), []);
  useEffect(() => undo.current?.focus(), [gone]); // the button that was pressed is not there any more
  return (
    <Dialog name="talks" title={t("app.talks")}>
      <button type="button" class="go wide" onClick={() => void show(null)}>
        <Icon name="plus" /> {t("app.new")}
      </button>
      <p class={gone ? "undo" : ""} role="status">
        {gone && (
          <>
            <span>{t("talk.deleted")}: <bdi>{gone.title}</bdi></span>
            <button type="button" ref={undo} class="soft" onClick={() => void gone.back().then(() => setGone(null))}>{t("talk.undo")}</button>
          </>
        )}
      </p>
      {state.talks.length === 0 && <p class="dim">{t("talk.none")}</p>}
      <ul class="talk-list">
        {state.talks.map((talk) => (
          <li key={talk.id} class={talk.id === state.talk?.id ? "now" : ""}>
            <button type="button" class="open" aria-current={talk.id === state.talk?.id} onClick={() => void show(talk.id)}>
              <b dir="auto">{talk.title || t("talk.untitled")}</b>
              <small>{new Date(talk.updated).toLocaleString(state.language === "zh" ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "short" })}</small>
            </button>
            <button type="button" class="quiet round" aria-label={t("talk.delete", { title: talk.title })} onClick={() => void forget(talk).then((back) => setGone({ title: talk.title, back }))}>
              <Icon name="bin" />
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

export function CameraDialog(): JSX.Element {
  const video = useRef<HTMLVideoElement>(null);
  const [front, setFront] = useState(false);
  const [live, setLive] = useState(false);
  const [bad, setBad] = useState(false);
  useEffect(() => {
    let stream: MediaStream | undefined;
    let gone = false;
    setLive(false);
    navigator.mediaDevices
      .getUserMedia({ video: { facingMode: front ? "user" : "environment", width: { ideal: 1920 }, height: { ideal: 1080 } } })
      .then(async (s) => {
        stream = s;
        if (gone) return s.getTracks().forEach((track) => track.stop());
        video.current!.srcObject = s;
        await video.current!.play();
        setLive(true);
      })
      .catch(() => setBad(true));
    return () => {
      gone = true;
      stream?.getTracks().forEach((track) => track.stop());
    };
  }, [front]);
  const take = () => {
    const v = video.current!;
    const canvas = Object.assign(document.createElement("canvas"), { width: v.videoWidth, height: v.videoHeight });
    canvas.getContext("2d")!.drawImage(v, 0, 0);
    canvas.toBlob((blob) => blob && add([new File([blob], "camera.jpg", { type: "image/jpeg" })]), "image/jpeg", 0.95);
  };
  return (
    <Dialog name="camera" title={t("camera.title")}>
      {bad ? (
        <p class="ending bad" role="alert">{t("trouble.camera")}</p>
      ) : (
        <>
          <div class="finder">
            <video ref={video} playsInline muted aria-label={t("camera.title")} />
            {!live && <p class="dim">{t("camera.wait")}</p>}
          </div>
          <div class="row">
            <button type="button" class="quiet" onClick={() => setFront(!front)}><Icon name="turn" /> {t("camera.turn")}</button>
            <button type="button" class="go" disabled={!live} onClick={take}><Icon name="camera" /> {t("camera.take")}</button>
          </div>
        </>
      )}
    </Dialog>
  );
}
