// What can be used on a page, each thing with a selector that matches it and nothing else.
//
// It runs in a world of its own, where the page's scripts cannot change what `querySelectorAll` means. The elements
// are still the page's: a form's inputs may stand in for its methods (<input name="parentElement">), so everything
// is asked through the prototypes, the document too. Time and number are limited, whatever the page holds.
(limits) => {
  const getter = (type, name) => {
    const read = Object.getOwnPropertyDescriptor(type.prototype, name).get;
    return (node) => read.call(node);
  };
  const parentOf = getter(Node, "parentElement");
  const parentNodeOf = getter(Node, "parentNode");
  const textContentOf = getter(Node, "textContent");
  const previousOf = getter(Element, "previousElementSibling");
  const tagOf = getter(Element, "localName");
  const shadowOf = getter(Element, "shadowRoot");
  const attribute = (node, name) => Element.prototype.getAttribute.call(node, name) || "";
  const rootOf = (node) => Node.prototype.getRootNode.call(node);
  const within = (root, selector) =>
    (root === document ? Document : DocumentFragment).prototype.querySelectorAll.call(root, selector);
  const isShown = (node) => Element.prototype.checkVisibility.call(node, { visibilityProperty: true });

  const end = performance.now() + limits.milliseconds;
  const late = () => performance.now() > end;
  const short = (text) => {
    const plain = (text || "").slice(0, 2000).replace(/\s+/g, " ").trim();
    return plain.length <= limits.text ? plain : plain.slice(0, limits.text - 1) + "…";
  };

  // Playwright looks into open shadow roots, and so do we.
  const roots = [document];
  for (let at = 0; at < roots.length && at < 50; at += 1) {
    const all = within(roots[at], "*");
    for (let i = 0; i < all.length && i < limits.scanned; i += 1) {
      const inside = shadowOf(all[i]);
      if (inside) roots.push(inside);
    }
  }
  const everywhere = (selector, most) => {
    const found = [];
    for (const root of roots) {
      const some = within(root, selector);
      for (let i = 0; i < some.length && found.length < most; i += 1) found.push(some[i]);
    }
    return found;
  };
  const isOnly = (selector, node) => {
    const found = everywhere(selector, 2);
    return found.length === 1 && found[0] === node;
  };

  // Selectors

  const quoted = (value) => '"' + value.replace(/["\\]/g, "\\$&") + '"';
  const isStable = (name) => /^[A-Za-z_][\w-]{0,60}$/.test(name) && !/\d{4}|[0-9a-f]{8}|^css-|^sc-/i.test(name);
  const isTelling = (value) => value.length > 0 && value.length <= 100 && !/[\n;]|'\)/.test(value);
  const TELLING = ["data-testid", "data-test", "data-qa", "name", "aria-label", "placeholder", "title", "alt", "href", "src"];

  const candidates = function* (node) {
    const tag = tagOf(node);
    const id = attribute(node, "id");
    if (isStable(id)) yield `${tag}#${id}`;
    for (const name of TELLING) {
      const value = attribute(node, name);
      if (isTelling(value)) yield `${tag}[${name}=${quoted(value)}]`;
    }
    const classes = attribute(node, "class").split(/\s+/).filter(isStable).slice(0, 3);
    if (classes.length) yield `${tag}.${classes.join(".")}`;
    const type = attribute(node, "type");
    if (isStable(type)) yield `${tag}[type=${quoted(type)}]`;
    if (["h1", "table", "form", "main", "nav"].includes(tag)) yield tag;
  };
  const placeOf = (node) => {
    let place = 1;
    for (let before = previousOf(node); before; before = previousOf(before)) if (tagOf(before) === tagOf(node)) place += 1;
    return place;
  };
  const step = (node) =>
    ["html", "body"].includes(tagOf(node)) ? tagOf(node) : `${CSS.escape(tagOf(node))}:nth-of-type(${placeOf(node)})`;
  // Playwright takes seconds to count with CSS on a page of many thousand elements; browsers count immediately with XPath.
  const isLarge = within(document, "*").length > 5000;
  const xpathOf = (node) => {
    const steps = [];
    for (let at = node; at; at = parentOf(at)) {
      if (!(at instanceof HTMLElement) || !/^[a-z][\w-]*$/.test(tagOf(at))) return "";
      steps.unshift(`${tagOf(at)}[${placeOf(at)}]`);
    }
    return `xpath=/${steps.join("/")}`;
  };
  const known = new Map();
  const named = (node) => {
    if (!known.has(node)) {
      let found = "";
      if (!late()) for (const one of candidates(node)) if (isOnly(one, node)) { found = one; break; }
      known.set(node, found);
    }
    return known.get(node);
  };
  const selectorOf = (node) => {
    if (named(node)) return named(node);
    const path = isLarge && rootOf(node) === document ? xpathOf(node) : "";
    if (path) return path;
    const steps = [];
    for (let at = node; at; at = parentOf(at)) {
      const anchor = at === node ? "" : named(at);
      if (anchor) return [anchor, ...steps].join(" > ");
      steps.unshift(step(at));
    }
    const root = rootOf(node);
    return root === document ? steps.join(" > ") : `${selectorOf(root.host)} > ${steps.join(" > ")}`;
  };

  // What there is

  const ROLES = { a: "link", button: "button", summary: "button", select: "combobox", textarea: "textbox", table: "table", iframe: "frame" };
  const INPUTS = { submit: "button", button: "button", image: "button", reset: "button", checkbox: "checkbox", radio: "radio", range: "slider" };
  const roleOf = (node) => {
    const tag = tagOf(node);
    const said = attribute(node, "role");
    if (/^[a-z]{2,20}$/.test(said)) return said;
    if (tag === "input") return INPUTS[attribute(node, "type").toLowerCase()] || "textbox";
    return /^h[1-6]$/.test(tag) ? "heading" : ROLES[tag] || "button";
  };
  const labelOf = (node) => {
    const labels = node.labels;
    return labels && labels[0] ? textContentOf(labels[0]) : "";
  };
  const tableOf = (node) => {
    const rows = Element.prototype.querySelectorAll.call(node, "tr");
    const head = rows[0] ? [...Element.prototype.querySelectorAll.call(rows[0], "th,td")].slice(0, 12) : [];
    return `${rows.length} rows: ${head.map((cell) => textContentOf(cell)).join(", ")}`;
  };
  const textOf = (node, role) => {
    const tag = tagOf(node);
    if (role === "table") return tableOf(node);
    if (tag === "input" || tag === "select" || tag === "textarea") {
      const shown = role === "button" ? attribute(node, "value") : "";
      return shown || attribute(node, "aria-label") || labelOf(node) || attribute(node, "placeholder") || attribute(node, "name");
    }
    const picture = Element.prototype.querySelector.call(node, "img[alt]");
    return short(textContentOf(node)) || attribute(node, "aria-label") || attribute(node, "title") || (picture ? attribute(picture, "alt") : "");
  };
  const described = (node, role) => {
    const said = { role, text: short(textOf(node, role)), node };
    const href = role === "link" ? attribute(node, "href") : role === "frame" ? attribute(node, "src") : "";
    if (href && href.length <= 300) said.href = href;
    const classes = attribute(node, "class").split(/\s+/).filter(isStable).slice(0, 4).join(" ");
    if (classes) said.class = classes;
    if (node.disabled === true) said.disabled = true;
    if (node.checked === true) said.checked = true;
    const isSecret = attribute(node, "type").toLowerCase() === "password";
    if (role === "textbox" && !isSecret && typeof node.value === "string" && node.value) said.value = short(node.value);
    return said;
  };

  const USABLE =
    "a[href],button,input:not([type=hidden]),select,textarea,summary,[role=button],[role=link],[role=tab]," +
    "[role=menuitem],[role=checkbox],[role=switch],[contenteditable=true],h1,h2,h3,h4,h5,h6,table,iframe";
  const counts = {};
  let left = 0;
  const kept = [];
  const keep = (node, role) => {
    if (!isShown(node)) return;
    counts[role] = (counts[role] || 0) + 1;
    if (counts[role] > (limits.each[role] || limits.each.other)) left += 1;
    else kept.push(described(node, role));
  };
  const usable = everywhere(USABLE, limits.scanned);
  for (const node of usable) {
    if (late()) break;
    keep(node, roleOf(node));
  }

  // Short texts with a number in them, unless they are all that something above says.
  const listed = new Set(usable);
  const isSaid = (node) => {
    const text = short(textContentOf(node));
    for (let at = node; at; at = parentOf(at)) if (listed.has(at) && short(textContentOf(at)) === text) return true;
    return false;
  };
  const seen = new Set();
  for (const root of roots) {
    const texts = Document.prototype.createTreeWalker.call(document, root, NodeFilter.SHOW_TEXT);
    for (let i = 0; i < limits.scanned && !late() && texts.nextNode(); i += 1) {
      const said = texts.currentNode.data;
      if (said.length > 200 || !/\p{Nd}/u.test(said)) continue;
      const node = parentOf(texts.currentNode);
      if (!node || seen.has(node) || ["script", "style", "noscript"].includes(tagOf(node)) || isSaid(node)) continue;
      seen.add(node);
      if (textContentOf(node).length <= 200) keep(node, "number");
    }
  }

  kept.sort((a, b) => (Node.prototype.compareDocumentPosition.call(a.node, b.node) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
  return {
    elements: kept.map(({ node, ...said }) => ({ selector: selectorOf(node), tag: tagOf(node), ...said })),
    left_out: left,
    is_whole: !late() && usable.length < limits.scanned,
  };
};
