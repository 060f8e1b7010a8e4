// The API, as /openapi.json describes it: addresses, what they take, and what they answer.

import { findToken, request } from "./api.js";
import { $, count, failure, h } from "./elements.js";

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
    body ? [h("p", { class: "quiet" }, "Body"), h("pre", { tabindex: "0" }, shape(body, description))] : null,
    answer ? [h("p", { class: "quiet" }, "Answer"), h("pre", { tabindex: "0" }, shape(answer, description))] : null);
}

function table(first, rows) {
  const head = [first, "type", "default", ""].map((one) => h("th", { scope: "col" }, one));
  return h("div", { class: "wide" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

function row(name, schema, required, text, description) {
  const given = schema.default === undefined || schema.default === null ? "" : JSON.stringify(schema.default);
  return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("code", {}, shape(schema, description).replace(" | null", "")), bounds(schema)),
    h("td", {}, required ? "required" : given), h("td", {}, text ?? ""));
}

function bounds(schema) {
  const least = schema.minimum ?? schema.minLength;
  const most = schema.maximum ?? schema.maxLength;
  return most === undefined ? "" : `, ${least ?? 0} to ${count(most)}${schema.type === "string" ? " characters" : ""}`;
}

/** A type as a text; of an object one property a line. */
function shape(schema, description, indent = "") {
  const found = resolved(schema, description);
  const inner = (one) => shape(one, description, `${indent}  `);
  if (found.anyOf) return found.anyOf.map((one) => shape(one, description, indent)).join(" | ");
  if (found.enum) return found.enum.map((one) => JSON.stringify(one)).join(" | ");
  if ("const" in found) return JSON.stringify(found.const);
  if (found.type === "array") return `[${shape(found.items, description, indent)}]`;
  const others = typeof found.additionalProperties === "object" ? [["…", found.additionalProperties]] : [];
  if (found.properties) return `{\n${[...Object.entries(found.properties), ...others].map(([name, one]) => `${indent}  ${name}: ${inner(one)}`).join(",\n")}\n${indent}}`;
  if (others.length) return `{…: ${inner(found.additionalProperties)}}`;
  return found.type ?? "any";
}

function resolved(schema, description) {
  return schema.$ref ? description.components.schemas[schema.$ref.split("/").pop()] : schema;
}

start();
