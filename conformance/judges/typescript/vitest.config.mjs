// The suite's configuration, with its `wire()` replaced by that of wire.mjs. It runs in the folder of the suite.

import { fileURLToPath, pathToFileURL } from 'node:url';
import path from 'node:path';

const { default: theirs } = await import(pathToFileURL(path.resolve('vitest.config.js')));
const ours = fileURLToPath(new URL('wire.mjs', import.meta.url));
const NAMES = [
    'hostPerSession', 'hostStateless', 'createMcpHandler', 'StreamableHTTPClientTransport', 'sniffTransport',
    'assertModernNegotiation', 'MODERN_REVISION', 'getCurrentTest', 'getRequestListener'
];

function replaced(code) {
    const [before, after] = code.split('export async function wire(');
    if (after === undefined) throw new Error('the suite has no wire() any more');
    return `
import { getCurrentTest } from 'vitest/suite';
import { getRequestListener } from '@hono/node-server';
import { through } from ${JSON.stringify(ours)};
${before}async function theirWire(${after}
export const wire = through({ wire: theirWire, ${NAMES.join(', ')} });
`;
}

export default {
    ...theirs,
    plugins: [
        ...(theirs.plugins ?? []),
        {
            name: 'holdfast',
            enforce: 'pre',
            transform: (code, id) => (id.endsWith('/test/e2e/helpers/index.ts') ? replaced(code) : undefined)
        }
    ]
};
