/**
 * Cuts Markdown that is still coming into blocks. A block that is finished is rendered once and never again, so that
 * the work for an answer grows with its length and no faster; only what stands behind the last cut is rendered anew.
 *
 * Cut at blank lines outside of code fences, but not inside a list (whose items may have blank lines between them).
 * Whatever gets too long is cut all the same: paragraphs at a line's end or a blank, tables between rows (the head is
 * given again to each part), code in pieces of a fence.
 */
export interface Block {
  kind: "text" | "code" | "table";
  text: string;
  /** Code: what stands behind the fence. */
  info?: string;
  /** Goes on with what the block before has begun. */
  more?: boolean;
}

const LONG_TEXT = 4000;
const LONG_TABLE = 60; // rows
const LONG_ROW = 4000;
const LONG_CODE = 16000;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/;
const ITEM = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

export class Splitter {
  /** Finished, in order; only ever added to. */
  readonly done: Block[] = [];
  private rest = ""; // of a line that has not ended
  private lines: string[] = [];
  private size = 0;
  private fence: { mark: string; info: string; more: boolean } | null = null;
  private list = false;
  private blank = false;
  private table: { head: [string, string]; more: boolean } | null = null;
  private more = false;

  /** What is not finished, as it would be if the text ended here. */
  get tail(): Block | null {
    const text = this.rest ? [...this.lines, this.rest].join("\n") : this.lines.join("\n");
    if (this.fence) {
      if (!text && this.fence.more) return null;
      return { kind: "code", text, info: this.fence.info, ...(this.fence.more && { more: true }) };
    }
    if (!text.trim()) return null;
    if (this.table) {
      const rows = this.table.more ? [...this.table.head, text].join("\n") : text;
      return { kind: "table", text: rows, ...(this.table.more && { more: true }) };
    }
    return { kind: "text", text, ...(this.more && { more: true }) };
  }

  push(piece: string): void {
    let text = this.rest + piece;
    let at = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", at)) {
      this.line(text.slice(at, end).replace(/\r$/, ""));
      at = end + 1;
    }
    text = text.slice(at);
    // A line that does not end is cut at blanks.
    const most = this.fence ? LONG_CODE : this.table ? LONG_ROW * 8 : LONG_TEXT;
    while (text.length > most + 200) {
      const blank = text.lastIndexOf(" ", most);
      let cut = blank > most / 2 ? blank + 1 : most;
      if (/[\ud800-\udbff]/.test(text[cut - 1]!)) cut--; // not through a letter of two units
      this.lines.push(text.slice(0, cut));
      text = text.slice(cut);
      this.flush(true);
    }
    this.rest = text;
  }

  end(): void {
    if (this.rest) {
      const last = this.rest;
      this.rest = "";
      this.line(last);
    }
    this.flush(false);
  }

  private line(line: string): void {
    if (this.fence) {
      const close = FENCE.exec(line);
      if (close && close[1]!.startsWith(this.fence.mark) && !close[2]!.trim()) {
        this.flush(false);
        this.fence = null;
        return;
      }
      this.add(line);
      if (this.size > LONG_CODE) {
        this.flush(true);
        this.fence.more = true;
      }
      return;
    }
    const open = FENCE.exec(line);
    if (open && !(this.list && this.lines.length)) {
      this.flush(false);
      this.fence = { mark: open[1]!, info: open[2]!.trim(), more: false };
      return;
    }
    if (!line.trim()) {
      this.blank = this.lines.length > 0;
      if (this.blank && !this.list) this.flush(false);
      else if (this.blank) this.add(line);
      return;
    }
    if (this.blank && this.list && !ITEM.test(line) && !/^(?: {2,}|\t)/.test(line)) this.flush(false);
    this.blank = false;
    if (!this.lines.length && !this.table) this.list = ITEM.test(line);
    this.add(line);
    const [head, rule] = this.lines;
    if (!this.table && !this.list && this.lines.length === 2 && head!.includes("|") && RULE.test(rule!) && !this.more)
      this.table = { head: [head!, rule!], more: false };
    const long = this.table ? this.lines.length > LONG_TABLE || this.size > LONG_ROW * 4 : this.size > LONG_TEXT;
    if (long) this.flush(true);
  }

  private add(line: string): void {
    this.lines.push(line);
    this.size += line.length + 1;
  }

  /** `on`: what comes next goes on with it. */
  private flush(on: boolean): void {
    const block = this.unrested();
    if (block) this.done.push(block);
    else if (this.fence && !this.fence.more && !on)
      this.done.push({ kind: "code", text: "", info: this.fence.info }); // an empty fence
    this.lines = [];
    this.size = 0;
    this.blank = false;
    if (on && this.table) this.table.more = true;
    if (!on) this.table = null;
    if (on && this.fence) this.fence.more = true;
    this.more = on && !this.table && !this.fence;
    if (!on) this.list = false;
  }

  private unrested(): Block | null {
    const rest = this.rest;
    this.rest = "";
    const block = this.lines.length ? this.tail : null;
    this.rest = rest;
    return block;
  }
}

const kept = new WeakMap<object, { text: string; splitter: Splitter }>();

/** The blocks of an answer that is over: those it came in, if it came in this tab. */
export function splitterOf(message: { text: string }): Splitter {
  const known = kept.get(message);
  if (known && known.text === message.text) return known.splitter;
  const splitter = new Splitter();
  splitter.push(message.text);
  splitter.end();
  kept.set(message, { text: message.text, splitter });
  return splitter;
}

export function keep(message: { text: string }, splitter: Splitter): void {
  kept.set(message, { text: message.text, splitter });
}
