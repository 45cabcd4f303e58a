/** JSON Schemas of parameters, as far as a form needs them. What a form cannot show is written as JSON. */

import type { Json, JsonObject } from "./api";

export type Field =
  | { kind: "object"; properties: [string, JsonObject][]; required: Set<string>; isOpen: boolean }
  | { kind: "array"; items: JsonObject }
  | { kind: "choice"; options: Json[] }
  | { kind: "variants"; variants: JsonObject[] }
  | { kind: "text"; isLong: boolean; format: string }
  | { kind: "number"; isWhole: boolean }
  | { kind: "boolean" }
  | { kind: "null" }
  | { kind: "json" };

const isObject = (value: Json | undefined): value is JsonObject => typeof value === "object" && value !== null && !Array.isArray(value);

/** The schema without `$ref` and `allOf`, and whether null is allowed beside its type. */
export function resolve(schema: JsonObject, root: JsonObject, depth = 0): { schema: JsonObject; isNullable: boolean } {
  let current = schema;
  if (typeof current.$ref === "string" && depth < 20) {
    const { $ref: reference, ...beside } = current;
    const target = lookUp(reference as string, root);
    return resolve({ ...target, ...beside }, root, depth + 1);
  }
  if (Array.isArray(current.allOf) && depth < 20) {
    const { allOf, ...rest } = current;
    for (const part of allOf as Json[]) if (isObject(part)) current = merge(resolve(part, root, depth + 1).schema, rest);
  }
  const variants = (current.anyOf ?? current.oneOf) as Json[] | undefined;
  if (Array.isArray(variants)) {
    const others = variants.filter((each) => isObject(each) && each.type !== "null") as JsonObject[];
    const { anyOf, oneOf, ...beside } = current;
    void anyOf;
    void oneOf;
    if (others.length === 1 && others.length < variants.length) return { schema: resolve({ ...others[0]!, ...beside }, root, depth + 1).schema, isNullable: true };
    return { schema: current, isNullable: others.length < variants.length };
  }
  if (Array.isArray(current.type) && current.type.includes("null")) {
    const types = current.type.filter((each) => each !== "null");
    return { schema: { ...current, type: types.length === 1 ? types[0]! : types }, isNullable: true };
  }
  return { schema: current, isNullable: false };
}

function merge(a: JsonObject, b: JsonObject): JsonObject {
  const properties = { ...(isObject(a.properties) ? a.properties : {}), ...(isObject(b.properties) ? b.properties : {}) };
  const required = [...(Array.isArray(a.required) ? a.required : []), ...(Array.isArray(b.required) ? b.required : [])];
  return { ...a, ...b, ...(Object.keys(properties).length > 0 ? { properties, required } : {}) };
}

function lookUp(reference: string, root: JsonObject): JsonObject {
  if (!reference.startsWith("#/")) return {};
  let value: Json | undefined = root;
  for (const part of reference.slice(2).split("/")) {
    const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    value = isObject(value) ? value[name] : undefined;
  }
  return isObject(value) ? value : {};
}

/** How a value of the (resolved) schema is entered. */
export function fieldOf(schema: JsonObject): Field {
  if (Array.isArray(schema.enum)) return { kind: "choice", options: schema.enum };
  if (schema.const !== undefined) return { kind: "choice", options: [schema.const] };
  const variants = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(variants)) return { kind: "variants", variants: variants.filter(isObject) };
  if (isObject(schema.properties)) {
    const required = new Set(Array.isArray(schema.required) ? schema.required.map(String) : []);
    return { kind: "object", properties: Object.entries(schema.properties).filter((each): each is [string, JsonObject] => isObject(each[1])), required, isOpen: false };
  }
  switch (schema.type) {
    case "string":
      return { kind: "text", isLong: typeof schema.maxLength !== "number" || schema.maxLength > 200, format: String(schema.format ?? schema.contentEncoding ?? "") };
    case "integer":
    case "number":
      return { kind: "number", isWhole: schema.type === "integer" };
    case "boolean":
      return { kind: "boolean" };
    case "null":
      return { kind: "null" };
    case "array":
      return isObject(schema.items) ? { kind: "array", items: schema.items } : { kind: "json" };
    default:
      return { kind: "json" };
  }
}

/** Whether a value has the type of a schema, as far as that tells variants apart. */
export function fits(schema: JsonObject, root: JsonObject, value: Json | undefined): boolean {
  const { schema: resolved, isNullable } = resolve(schema, root);
  if (value === null) return isNullable || resolved.type === "null";
  const field = fieldOf(resolved);
  switch (field.kind) {
    case "object":
      return isObject(value) && [...field.required].every((name) => value[name] !== undefined);
    case "array":
      return Array.isArray(value);
    case "choice":
      return field.options.some((option) => JSON.stringify(option) === JSON.stringify(value));
    case "variants":
      return field.variants.some((each) => fits(each, root, value));
    case "text":
      return typeof value === "string";
    case "number":
    case "boolean":
      return typeof value === field.kind;
    default:
      return field.kind === "json";
  }
}

export function parseObject(text: string): JsonObject | null {
  try {
    const value = JSON.parse(text) as Json;
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

/** The value that a form starts with: the default, or what the type needs at least. Undefined: left out. */
export function initialValue(schema: JsonObject, root: JsonObject, isRequired: boolean, depth = 0): Json | undefined {
  const { schema: resolved, isNullable } = resolve(schema, root);
  if (resolved.default !== undefined) return structuredClone(resolved.default);
  if (!isRequired || depth > 6) return undefined;
  if (isNullable) return null;
  const field = fieldOf(resolved);
  switch (field.kind) {
    case "object": {
      const value: JsonObject = {};
      for (const [name, member] of field.properties) {
        const initial = initialValue(member, root, field.required.has(name), depth + 1);
        if (initial !== undefined) value[name] = initial;
      }
      return value;
    }
    case "array":
      return [];
    case "choice":
      return field.options[0];
    case "variants":
      return initialValue(field.variants[0] ?? {}, root, true, depth + 1);
    case "boolean":
      return false;
    case "null":
      return null;
    case "text":
      return "";
    default:
      return undefined;
  }
}
