/**
 * Markdown of an answer to markup that is safe to show. The answer is a stranger's text: HTML in it is shown as text,
 * pictures are named but never loaded, links are plain web links that open elsewhere without a referrer. DOMPurify goes
 * over the result, whatever markdown-it has made of it.
 */
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

const md = new MarkdownIt({ html: false, linkify: false, breaks: true });
(md.options as { maxNesting?: number }).maxNesting = 40; // the types forget it
md.validateLink = (url) => /^(https?:|mailto:|#)/i.test(url.trim());
md.disable(["html_block", "html_inline"], true);

md.renderer.rules["image"] = (tokens, i) => {
  const token = tokens[i]!;
  const alt = md.utils.escapeHtml(token.content || token.attrGet("src") || "");
  return `<span class="no-picture">🖼 ${alt}</span>`;
};
const plainLink =
  md.renderer.rules["link_open"] ?? ((tokens, i, options, _env, self) => self.renderToken(tokens, i, options));
md.renderer.rules["link_open"] = (tokens, i, options, env, self) => {
  const token = tokens[i]!;
  token.attrSet("target", "_blank");
  token.attrSet("rel", "noopener noreferrer nofollow");
  return plainLink(tokens, i, options, env, self);
};
for (const name of ["th_open", "td_open"])
  md.renderer.rules[name] = (tokens, i, options, _env, self) => {
    const token = tokens[i]!;
    const align = /text-align:(left|right|center)/.exec(token.attrGet("style") ?? "");
    token.attrs = (token.attrs ?? []).filter(([key]) => key !== "style"); // the policy allows no style attributes
    if (align) token.attrSet("align", align[1]!);
    return self.renderToken(tokens, i, options);
  };

const TAGS = (
  "p br hr h1 h2 h3 h4 h5 h6 ul ol li strong em s del code pre blockquote a table thead tbody tr th td span"
).split(" ");

/** TrustedHTML where the browser has it, else text. */
export function render(text: string): TrustedHTML | string {
  return DOMPurify.sanitize(md.render(text), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "target", "rel", "align", "start", "class"],
    ADD_URI_SAFE_ATTR: ["target", "rel", "align", "start"],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
    RETURN_TRUSTED_TYPE: true,
  }) as unknown as TrustedHTML;
}

declare global {
  interface TrustedHTML {
    toString(): string;
  }
}
