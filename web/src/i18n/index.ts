import { type Key, en } from "./en";
import { zh } from "./zh";

export type Language = "en" | "zh";
export type { Key };
const dictionaries: Record<Language, Record<Key, string>> = { en, zh };

export function languageOf(setting: "auto" | Language): Language {
  if (setting !== "auto") return setting;
  return navigator.languages.find((l) => /^(zh|en)\b/i.test(l))?.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export function translate(language: Language, key: Key, values: Record<string, string | number> = {}): string {
  return dictionaries[language][key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

export const has = (key: string): key is Key => key in en;
