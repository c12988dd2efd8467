/** Server-sent events out of pieces of text that end anywhere: gives the data of each whole event. */
export class SseParser {
  private rest = "";
  private data: string[] = [];

  push(piece: string): string[] {
    const out: string[] = [];
    const text = this.rest + piece;
    let at = 0;
    for (;;) {
      let end = at;
      while (end < text.length && text[end] !== "\n" && text[end] !== "\r") end++;
      // A CR that is the last so far may be half of a CR LF.
      if (end === text.length || (text[end] === "\r" && end + 1 === text.length)) break;
      const line = text.slice(at, end);
      at = end + (text[end] === "\r" && text[end + 1] === "\n" ? 2 : 1);
      if (line === "") {
        if (this.data.length) out.push(this.data.join("\n"));
        this.data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    this.rest = text.slice(at);
    return out;
  }
}
