/** Markdown as elements: HTML in it stays text, images are not loaded, links say where they lead. */

import ReactMarkdown from "react-markdown";
import remarkGfm from "remark-gfm";
import { t } from "./language";
import { safeLink } from "./text";

export default function MarkdownText({ text }: { text: string }) {
  return (
    <ReactMarkdown
      remarkPlugins={[remarkGfm]}
      urlTransform={(url) => safeLink(url) ?? ""}
      components={{
        a: ({ href, children }) => {
          const target = safeLink(href);
          if (target === undefined) return <span>{children}</span>;
          return (
            <a href={target} target="_blank" rel="noopener noreferrer" title={t("linkTo", { target })}>
              {children}
            </a>
          );
        },
        img: ({ alt, src }) => <span className="faint">[{alt || String(src ?? "")}]</span>,
        table: ({ children }) => (
          <div className="scroll" tabIndex={0}>
            <table>{children}</table>
          </div>
        ),
      }}
    >
      {text}
    </ReactMarkdown>
  );
}
