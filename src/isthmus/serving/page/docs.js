// The API, as /openapi.json describes it: addresses, what they take, and what they answer.

import { findToken, request } from "./api.js";
import { $, failure, h } from "./elements.js";

async function start() {
  findToken();
  try {
    const description = await request("openapi.json");
    const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, one]) => operation(method.toUpperCase(), path, one, description)));
    $("addresses").replaceChildren(...operations);
  } catch (error) {
    if (error.status === 401) error.fix = "Open the address that the server printed: it ends in #token=…";
    $("addresses").replaceChildren(failure(error, start));
  }
}

function operation(method, path, one, description) {
  const taken = (one.parameters ?? []).map((each) => row(each.name, each.schema, each.required, each.description, description));
  const body = one.requestBody?.content["application/json"]?.schema;
  const answer = one.responses["200"]?.content?.["application/json"]?.schema;
  return h("section", { class: "address" },
    h("h2", {}, `${method} ${path}`),
    h("p", {}, one.description ?? one.summary),
    taken.length ? table("parameter", taken) : null,
    body ? [h("p", { class: "quiet" }, "Body"), shape(body, description)] : null,
    answer ? [h("p", { class: "quiet" }, "Answer"), shape(answer, description)] : null);
}

function table(first, rows) {
  const head = [first, "type", "default", ""].map((one) => h("th", { scope: "col" }, one));
  return h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function row(name, schema, required, text, description) {
  const given = schema.default === undefined ? "" : JSON.stringify(schema.default);
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("code", {}, typeOf(schema, description))),
    h("td", {}, required ? "required" : given), h("td", {}, text ?? schema.description ?? ""));
}

/** A type with its choices and bounds, in words. */
function typeOf(schema, description) {
  const found = resolved(schema, description);
  if (found.anyOf) return found.anyOf.map((one) => typeOf(one, description)).join(" | ");
  if (found.enum) return found.enum.map((one) => JSON.stringify(one)).join(" | ");
  if ("const" in found) return JSON.stringify(found.const);
  if (found.type === "array") return `${typeOf(found.items, description)}[]`;
  if (found.properties) return `{${Object.entries(found.properties).map(([name, one]) => `${name}: ${typeOf(one, description)}`).join(", ")}}`;
  const bounds = [found.minimum ?? found.minLength, found.maximum ?? found.maxLength];
  const unit = found.type === "string" ? " characters" : "";
  const said = bounds[0] === undefined && bounds[1] === undefined ? "" : `, ${bounds[0] ?? 0} to ${bounds[1] ?? "…"}${unit}`;
  return `${found.type ?? "any"}${said}`;
}

/** An object, one property a line. */
function shape(schema, description) {
  const found = resolved(schema, description);
  const lines = Object.entries(found.properties ?? {}).map(([name, one]) => `  ${name}: ${typeOf(one, description)}`);
  return h("pre", { tabindex: "0" }, lines.length ? `{\n${lines.join(",\n")}\n}` : typeOf(found, description));
}

function resolved(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").pop()] : schema;
}

start();
