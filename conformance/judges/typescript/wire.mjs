// The suite's `wire()`, with a socket and a gateway between client and server on the arms that speak HTTP.
//
// `their` has what the suite's own module made or imports: a copy of a class would not be the class of its tests.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

const CONTROL = process.env.HOLDFAST_GATEWAYS;

async function control(method, body) {
    const response = await fetch(CONTROL, { method, body });
    if (!response.ok) throw new Error(`no gateway: ${response.status}`);
    return response.text();
}

async function listening(handle, listener) {
    const server = createServer(listener(handle, { overrideGlobalObjects: false }));
    await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
    return {
        url: `http://127.0.0.1:${server.address().port}/${randomUUID()}/mcp`,
        close: () => {
            server.closeAllConnections();
            return new Promise(resolve => server.close(resolve));
        }
    };
}

export function through(their) {
    return async function wire(transport, makeServer, client, sniff = {}) {
        const host = hostOf(their, transport, makeServer, sniff);
        if (host === undefined) return their.wire(transport, makeServer, client, sniff);
        const test = their.getCurrentTest();
        test.meta.judged = !test.fails; // a test that is expected to fail without us shows nothing of us

        const server = await listening(host.handle, their.getRequestListener);
        const url = new URL(await control('POST', server.url));
        const httpLog = [];
        const fetchThrough = async (to, init) => {
            const request = new Request(to, init);
            const response = await fetch(request.clone());
            httpLog.push({
                method: request.method.toUpperCase(),
                requestHeaders: request.headers,
                ...(typeof init?.body === 'string' && { requestBody: init.body }),
                status: response.status,
                contentType: response.headers.get('content-type') ?? '',
                response: response.clone()
            });
            return response;
        };
        const close = async () => {
            await client.close();
            await control('DELETE', url.href);
            await host.close();
            await server.close();
        };
        try {
            let options = sniff;
            if (transport === 'entryModern') {
                client.setVersionNegotiation({ mode: { pin: their.MODERN_REVISION } });
                options = { allowInputRequiredResults: true, ...sniff };
            }
            const connection = new their.StreamableHTTPClientTransport(url, { fetch: fetchThrough });
            await client.connect(their.sniffTransport(connection, 'client', options));
            if (transport === 'entryModern') their.assertModernNegotiation(client);
        } catch (error) {
            await close();
            throw error;
        }
        return { fetch: fetchThrough, url, httpLog, [Symbol.asyncDispose]: close };
    };
}

function hostOf(their, transport, makeServer, sniff) {
    switch (transport) {
        case 'streamableHttp':
        case 'streamableHttpStateless': {
            const host = transport === 'streamableHttp' ? their.hostPerSession(makeServer) : their.hostStateless(makeServer);
            return { handle: request => host.handleRequest(request), close: () => host.close() };
        }
        case 'entryStateless':
        case 'entryModern': {
            const legacy = transport === 'entryStateless' ? 'stateless' : 'reject';
            const handler = their.createMcpHandler(makeServer, { legacy, ...sniff.entry });
            return { handle: request => handler.fetch(request), close: () => handler.close() };
        }
    }
}
