/** Conversations and pictures in the browser's own database. Without one (private windows) they last as long as the page. */
import type { Picture, Talk } from "./types";

const memory = { talks: new Map<string, Talk>(), pictures: new Map<string, Picture>() };
type Store = keyof typeof memory;
let opened: Promise<IDBDatabase | null> | undefined;

function open(): Promise<IDBDatabase | null> {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("margay", 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("talks", { keyPath: "id" });
        request.result.createObjectStore("pictures", { keyPath: "id" });
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function run<T>(store: Store, mode: IDBTransactionMode, fn: (s: IDBObjectStore) => IDBRequest<T>): Promise<T | null> {
  const db = await open();
  if (!db) return null;
  return new Promise((resolve, reject) => {
    const t = db.transaction(store, mode);
    const request = fn(t.objectStore(store));
    t.oncomplete = () => resolve(request.result);
    t.onerror = t.onabort = () => reject(t.error ?? new Error("storage"));
  });
}

/** True when it is kept. */
export async function put(store: "talks", value: Talk): Promise<boolean>;
export async function put(store: "pictures", value: Picture): Promise<boolean>;
export async function put(store: Store, value: Talk | Picture): Promise<boolean> {
  try {
    if (await open()) await run(store, "readwrite", (s) => s.put(value));
    else throw new Error("none");
    memory[store].delete(value.id);
    return true;
  } catch {
    // Full, or none: the page goes on with what it has in memory.
    (memory[store] as Map<string, Talk | Picture>).set(value.id, value);
    return false;
  }
}

export async function get(store: "talks", id: string): Promise<Talk | null>;
export async function get(store: "pictures", id: string): Promise<Picture | null>;
export async function get(store: Store, id: string): Promise<Talk | Picture | null> {
  const kept = memory[store].get(id);
  if (kept) return kept;
  return ((await run(store, "readonly", (s) => s.get(id)).catch(() => null)) as Talk | Picture | undefined) ?? null;
}

export async function talks(): Promise<Talk[]> {
  const stored = ((await run("talks", "readonly", (s) => s.getAll()).catch(() => null)) as Talk[] | null) ?? [];
  return [...memory.talks.values(), ...stored.filter((talk) => !memory.talks.has(talk.id))].sort((a, b) => b.updated - a.updated);
}

export async function forget(store: Store, id: string): Promise<void> {
  memory[store].delete(id);
  await run(store, "readwrite", (s) => s.delete(id)).catch(() => null);
}
