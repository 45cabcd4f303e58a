/** A form made from a JSON Schema. */

import { useId, useState, type ReactNode } from "react";
import type { Json, JsonObject } from "./api";
import { t } from "./language";
import { fieldOf, fits, initialValue, parseObject, resolve } from "./schema";
import { asText, visible } from "./text";
import { Button } from "./ui";

interface FieldProps {
  name: string;
  schema: JsonObject;
  root: JsonObject;
  value: Json | undefined;
  isRequired: boolean;
  onChange: (value: Json | undefined) => void;
}

interface ArgumentsEditorProps {
  title: string;
  schema: JsonObject;
  /** The names of parameters that hold secrets. */
  secrets: string[];
  initial: JsonObject;
  /** Gets null while the JSON is not an object. */
  onChange: (value: JsonObject | null) => void;
  /** Other controls, beside the choice of form or JSON. */
  children?: ReactNode;
}

/** The arguments of a call, as a form or as JSON. */
export function ArgumentsEditor({ title, schema, secrets, initial, onChange, children }: ArgumentsEditorProps) {
  const hasForm = fieldOf(resolve(schema, schema).schema).kind === "object" || Object.keys(initial).length === 0;
  const [value, setValue] = useState(initial);
  const [text, setText] = useState(hasForm ? null : JSON.stringify(initial, null, 2));
  const change = (next: JsonObject | null) => {
    if (next !== null) setValue(next);
    onChange(next);
  };
  const switchForm = () => {
    change(value); // what is not an object is lost
    setText(text === null ? JSON.stringify(value, null, 2) : null);
  };
  const isValid = text === null || parseObject(text) !== null;
  return (
    <>
      <div className="row between wrap">
        <h3>{title}</h3>
        <div className="row">
          {children}
          {hasForm && <Button onClick={switchForm}>{t(text === null ? "asJson" : "asForm")}</Button>}
        </div>
      </div>
      {text === null ? (
        <div className="tool-form">
          <Members secrets={secrets} schema={schema} root={schema} value={value} onChange={change} />
        </div>
      ) : (
        <textarea
          aria-label={t("editArguments")}
          rows={Math.min(18, Math.max(6, text.split("\n").length + 1))}
          spellCheck={false}
          value={text}
          aria-invalid={!isValid}
          onChange={(event) => {
            setText(event.target.value);
            change(parseObject(event.target.value));
          }}
        />
      )}
      {!isValid && <p className="problem">{t("invalidJson")}</p>}
    </>
  );
}

interface MembersProps {
  schema: JsonObject;
  root: JsonObject;
  value: JsonObject;
  secrets?: string[];
  onChange: (value: JsonObject) => void;
}

function Members({ schema, root, value, secrets = [], onChange }: MembersProps) {
  const field = fieldOf(resolve(schema, root).schema);
  if (field.kind !== "object") return <p className="faint">{t("noArguments")}</p>;
  return (
    <>
      {field.properties.map(([name, member]) => (
        <FieldInput
          key={name}
          name={name}
          schema={secrets.includes(name) ? { ...member, format: "password" } : member}
          root={root}
          value={value[name]}
          isRequired={field.required.has(name)}
          onChange={(next) => {
            const { [name]: _, ...others } = value;
            onChange(next === undefined ? others : { ...others, [name]: next });
          }}
        />
      ))}
    </>
  );
}

function FieldInput({ name, schema, root, value, isRequired, onChange }: FieldProps) {
  const id = useId();
  const { schema: resolved, isNullable } = resolve(schema, root);
  const isSet = value !== undefined && !(value === null && isNullable);
  const canBeUnset = !isRequired || isNullable;
  const hint = typeof resolved.description === "string" ? resolved.description : "";
  const field = fieldOf(resolved);
  const isGroup = field.kind === "object" || field.kind === "array" || field.kind === "variants";
  const body = <Input name={name} schema={resolved} root={root} value={value} isRequired onChange={onChange} />;
  if (isGroup) {
    return (
      <fieldset>
        <legend>
          {visible(name)} {!isRequired && <span className="hint">{t("optional")}</span>}
        </legend>
        {hint !== "" && <span className="hint">{visible(hint)}</span>}
        {isSet ? body : null}
        {canBeUnset && (
          <div>
            <Button onClick={() => onChange(isSet ? (isNullable && isRequired ? null : undefined) : (initialValue({ ...resolved, default: undefined as unknown as Json }, root, true) ?? {}))}>{isSet ? t("remove") : t("add")}</Button>
          </div>
        )}
      </fieldset>
    );
  }
  if (field.kind === "text") {
    return (
      <div className="field">
        <label htmlFor={id}>
          <span>
            {visible(name)} {!isRequired && <span className="hint">{t("optional")}</span>}
          </span>
          {hint !== "" && <span className="hint">{visible(hint)}</span>}
        </label>
        <TextInput id={id} value={value} isRequired={isRequired && !isNullable} isLong={field.isLong} format={field.format} onChange={(next) => onChange(next === undefined && isRequired && isNullable ? null : next)} />
      </div>
    );
  }
  return (
    <label>
      <span>
        {visible(name)} {!isRequired && <span className="hint">{t("optional")}</span>}
      </span>
      {hint !== "" && <span className="hint">{visible(hint)}</span>}
      <Input name={name} schema={resolved} root={root} value={value} isRequired={isRequired && !isNullable} onChange={(next) => onChange(next === undefined && isRequired && isNullable ? null : next)} />
    </label>
  );
}

function Input({ name, schema, root, value, isRequired, onChange }: FieldProps) {
  const field = fieldOf(schema);
  switch (field.kind) {
    case "object":
      return <Members schema={schema} root={root} value={(value ?? {}) as JsonObject} onChange={onChange} />;
    case "array":
      return <ArrayInput items={field.items} root={root} value={(Array.isArray(value) ? value : []) as Json[]} onChange={onChange} />;
    case "variants":
      return <VariantInput variants={field.variants} root={root} value={value} onChange={onChange} />;
    case "choice":
      return (
        <select value={value === undefined || value === null ? "" : JSON.stringify(value)} onChange={(event) => onChange(event.target.value === "" ? undefined : (JSON.parse(event.target.value) as Json))}>
          {(!isRequired || value === undefined) && <option value="">{t("notSet")}</option>}
          {field.options.map((option) => (
            <option key={JSON.stringify(option)} value={JSON.stringify(option)}>
              {visible(asText(option))}
            </option>
          ))}
        </select>
      );
    case "boolean":
      return (
        <select value={typeof value === "boolean" ? String(value) : ""} onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}>
          {(!isRequired || value === undefined) && <option value="">{t("notSet")}</option>}
          <option value="true">{t("yes")}</option>
          <option value="false">{t("no")}</option>
        </select>
      );
    case "number":
      return <input type="number" step={field.isWhole ? 1 : "any"} value={typeof value === "number" ? value : ""} onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))} />;
    case "null":
      return <code>null</code>;
    default:
      return <JsonInput key={name} value={value} onChange={onChange} />;
  }
}

/** Formats that hold the content of a file: it is read as base64. */
const BINARY_FORMATS = new Set(["binary", "byte", "base64"]);
const INPUT_TYPES: Record<string, string> = { password: "password", date: "date", email: "email", uri: "url" };

interface TextInputProps {
  id: string;
  value: Json | undefined;
  isRequired: boolean;
  isLong: boolean;
  format: string;
  onChange: (value: Json | undefined) => void;
}

function TextInput({ id, value, isRequired, isLong, format, onChange }: TextInputProps) {
  const text = typeof value === "string" ? value : "";
  const isBinary = BINARY_FORMATS.has(format);
  const type = INPUT_TYPES[format];
  const change = (next: string) => onChange(next === "" && !isRequired ? undefined : next);
  const read = async (file: File | undefined) => {
    if (file !== undefined) change(isBinary ? await readBase64(file) : await file.text());
  };
  if (type !== undefined || !isLong) {
    return <input id={id} type={type ?? "text"} autoComplete="off" value={text} onChange={(event) => change(event.target.value)} />;
  }
  return (
    <div className="text-input">
      <textarea id={id} rows={Math.min(8, text.split("\n").length)} value={text} onChange={(event) => change(event.target.value)} />
      <label className="button quiet file">
        {t("fromFile")}
        <input type="file" className="hidden-text" onChange={(event) => void read(event.target.files?.[0])} />
      </label>
    </div>
  );
}

async function readBase64(file: File): Promise<string> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let index = 0; index < bytes.length; index += 8192) binary += String.fromCharCode(...bytes.subarray(index, index + 8192));
  return btoa(binary);
}

function ArrayInput({ items, root, value, onChange }: { items: JsonObject; root: JsonObject; value: Json[]; onChange: (value: Json[]) => void }) {
  return (
    <>
      {value.map((item, index) => (
        <div className="row array-item" key={index}>
          <div className="grow">
            <FieldInput name={String(index + 1)} schema={items} root={root} value={item} isRequired onChange={(next) => onChange(value.map((each, place) => (place === index ? (next ?? null) : each)))} />
          </div>
          <Button aria-label={`${t("remove")} ${index + 1}`} onClick={() => onChange(value.filter((_, place) => place !== index))}>
            ×
          </Button>
        </div>
      ))}
      <div>
        <Button onClick={() => onChange([...value, initialValue(items, root, true) ?? null])}>{t("add")}</Button>
      </div>
    </>
  );
}

function VariantInput({ variants, root, value, onChange }: { variants: JsonObject[]; root: JsonObject; value: Json | undefined; onChange: (value: Json | undefined) => void }) {
  const [index, setIndex] = useState(() => Math.max(0, variants.findIndex((each) => fits(each, root, value))));
  const id = useId();
  const nameOf = (schema: JsonObject, place: number) => String(schema.title ?? resolve(schema, root).schema.title ?? schema.type ?? resolve(schema, root).schema.type ?? place + 1);
  const chosen = variants[index] ?? {};
  return (
    <>
      <select
        id={id}
        aria-label={t("schema")}
        value={index}
        onChange={(event) => {
          const next = Number(event.target.value);
          setIndex(next);
          onChange(initialValue(variants[next] ?? {}, root, true));
        }}
      >
        {variants.map((each, place) => (
          <option key={place} value={place}>
            {visible(nameOf(each, place))}
          </option>
        ))}
      </select>
      <FieldInput name={nameOf(chosen, index)} schema={chosen} root={root} value={value} isRequired onChange={onChange} />
    </>
  );
}

/** Any value, as JSON; what is not JSON is not passed on. */
function JsonInput({ value, onChange }: { value: Json | undefined; onChange: (value: Json | undefined) => void }) {
  const [text, setText] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const [isValid, setValid] = useState(true);
  return (
    <textarea
      spellCheck={false}
      rows={Math.min(10, text.split("\n").length + 1)}
      value={text}
      placeholder="JSON"
      aria-invalid={!isValid}
      onChange={(event) => {
        setText(event.target.value);
        try {
          onChange(event.target.value.trim() === "" ? undefined : (JSON.parse(event.target.value) as Json));
          setValid(true);
        } catch {
          setValid(false);
        }
      }}
    />
  );
}
