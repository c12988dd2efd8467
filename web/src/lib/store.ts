/**
 * The browser's two small stores. Where they are denied (cookies blocked) every touch of them throws; what is put then
 * lasts as long as the page.
 */
export interface Small {
  get(key: string): string | null;
  set(key: string, value: string | null): void;
}

function small(name: "localStorage" | "sessionStorage"): Small {
  const memory = new Map<string, string>();
  return {
    get(key) {
      try {
        return memory.get(key) ?? window[name].getItem(key);
      } catch {
        return null;
      }
    },
    set(key, value) {
      memory.delete(key);
      try {
        if (value === null) window[name].removeItem(key);
        else window[name].setItem(key, value);
      } catch {
        if (value !== null) memory.set(key, value);
      }
    },
  };
}

export const local = small("localStorage");
export const session = small("sessionStorage");
