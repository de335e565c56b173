// `node ts_client.mjs v1|v2 URL ELICIT`: the official TypeScript client in its default mode, as a stranger would use it.
// It prints what it got as JSON. Run from the folder that has node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const [line, url] = process.argv.slice(2);
const require = createRequire(path.join(process.cwd(), "x.js"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

let Client, Transport, handle;
const answer = async () => ({ action: "accept", content: { row: 7 } });
if (line === "v1") {
  ({ Client } = await load("@modelcontextprotocol/sdk/client/index.js"));
  ({ StreamableHTTPClientTransport: Transport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js"));
  const { ElicitRequestSchema } = await load("@modelcontextprotocol/sdk/types.js");
  handle = (client) => client.setRequestHandler(ElicitRequestSchema, answer);
} else {
  ({ Client, StreamableHTTPClientTransport: Transport } = await load("@modelcontextprotocol/client"));
  handle = (client) => client.setRequestHandler("elicitation/create", answer);
}
const client = new Client({ name: `ts-${line}`, version: "1" }, { capabilities: { elicitation: {} } });
handle(client);
await client.connect(new Transport(new URL(url)));
const progress = [];
const call = (name, args, options) =>
  line === "v1"
    ? client.callTool({ name, arguments: args }, undefined, options)
    : client.callTool({ name, arguments: args }, options);
const text = (result) => result.content[0].text;
const out = {
  tools: (await client.listTools()).tools.map((tool) => tool.name),
  counts: [],
  add: text(await call("real__add", { a: 2, b: 3 })),
};
for (let n = 0; n < 3; n++) out.counts.push(text(await call("counter__count", {})));
await call("real__steps", { count: 3 }, { onprogress: (each) => progress.push(each.progress) });
out.progress = progress;
out.booked = text(await call("real__book", {}));
out.resource = (await client.readResource({ uri: "note://one" })).contents[0].text;
out.prompt = (await client.getPrompt({ name: "real__greet", arguments: { name: "moss" } })).messages[0].content.text;
await client.close();
console.log(JSON.stringify(out));
process.exit(0);
