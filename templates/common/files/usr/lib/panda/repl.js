'use strict';
/*
 * repl.js - the resident Node.js of a sandbox: runs cells, keeps their variables. Started by repl-node.
 *
 * Requests on fd 3 and answers on fd 4 are those of repl.py. Cells run in V8's own REPL mode: a `const` or `let` may be
 * said again as the same, `await` works at top level. SIGINT interrupts code that computes, SIGUSR2 ends the wait for code that awaits (what was
 * awaited goes on in the background): whoever interrupts sends both. One signal for both would not do, Node loses those that
 * come in the moment between the two. process.exit() ends the cell and not us.
 */
const fs = require('fs');
const inspector = require('inspector');
const { createRequire } = require('module');
const net = require('net');
const path = require('path');
const url = require('url');
const util = require('util');
const vm = require('vm');
const { Writable } = require('stream');
const { Worker, isMainThread, parentPort, receiveMessageOnPort, workerData, MessageChannel } = require('worker_threads');

const REQUEST_MAX = 64 << 20; // bytes of one request
const TEXT_MAX = 1 << 20;     // characters of a text/plain result; more is cut
const JSON_MAX = 1 << 20;     // characters of an application/json result; larger ones are left out
const DRAIN_MS = 1000;        // how long a cell's end waits for the output of its subprocesses to be read
const ABSORB_MS = 20;         // after an interrupt: time for the other one of its signals
const TIMED_OUT = 124;        // as timeout(1) says

/*
 * A thread reads what subprocesses print, so that they never wait for us while we wait for them (execSync). A line with
 * the mark, which the main thread writes at the end of a cell, tells that all before it has been read.
 */
if (!isMainThread) {
	const { port, mark, seen } = workerData;
	for (const [i, fd] of [5, 6].entries()) {
		let rest = Buffer.alloc(0);
		new net.Socket({ fd, readable: true, writable: false }).on('data', data => {
			rest = Buffer.concat([rest, data]);
			let at;
			while ((at = rest.indexOf(mark)) >= 0) {
				if (at > 0)
					port.postMessage([i, rest.subarray(0, at)]);
				rest = rest.subarray(at + mark.length);
				Atomics.add(seen, i, 1);
				Atomics.notify(seen, i);
			}
			/* the end of it may be the begin of a mark */
			let hold = Math.min(rest.length, mark.length - 1);
			while (hold > 0 && !mark.startsWith(rest.subarray(rest.length - hold).toString('latin1')))
				hold--;
			if (rest.length > hold)
				port.postMessage([i, rest.subarray(0, rest.length - hold)]);
			rest = rest.subarray(rest.length - hold);
		});
	}
	return;
}

const NAMES = ['stdout', 'stderr'];
let id = null;

function send(type, rest) {
	writeAll(4, Buffer.from(`${JSON.stringify({ id, type, ...rest }, wellFormed)}\n`));
}

/* JSON for others: half a surrogate pair is not a character. */
function wellFormed(key, value) {
	return typeof value === 'string' ? value.toWellFormed() : value;
}

function writeAll(fd, data) {
	const nap = new Int32Array(new SharedArrayBuffer(4));
	for (let at = 0; at < data.length;) {
		try {
			at += fs.writeSync(fd, data, at);
		} catch (e) {
			if (e.code === 'EPIPE')
				process.reallyExit(0);
			if (e.code !== 'EAGAIN')
				throw e;
			Atomics.wait(nap, 0, 0, 1);
		}
	}
}

/* --- output of our own and of others */

const mark = `\0panda-${process.pid}-${process.hrtime.bigint()}\0`;
const seen = new Int32Array(new SharedArrayBuffer(8));
const { port1: port, port2 } = new MessageChannel();
const decoders = NAMES.map(() => new TextDecoder('utf-8'));
let marks = 0;

new Worker(__filename, { workerData: { port: port2, mark, seen }, transferList: [port2] })
	.on('error', e => { throw e; }).unref();
port.on('message', others);
port.unref();

function others([i, data]) {
	const text = decoders[i].decode(data, { stream: true });
	if (text)
		send(NAMES[i], { text });
}

function drain() {
	marks++;
	for (const fd of [1, 2])
		writeAll(fd, Buffer.from(mark));
	for (const i of [0, 1])
		for (let was; (was = Atomics.load(seen, i)) < marks;)
			if (Atomics.wait(seen, i, was, DRAIN_MS) === 'timed-out')
				break;
	for (let got; (got = receiveMessageOnPort(port));)
		others(got.message);
}

for (const name of NAMES)
	Object.defineProperty(process, name, {
		configurable: true, enumerable: true,
		value: Object.assign(new Writable({
			decodeStrings: false,
			write(chunk, encoding, done) {
				send(name, { text: typeof chunk === 'string' ? chunk : chunk.toString() });
				done();
			},
		}), { isTTY: false, columns: 80, fd: name === 'stdout' ? 1 : 2 }),
	});

/* --- cells */

class Exit {
	constructor(code) { this.code = code; }
}
process.exit = code => { throw new Exit(code ?? process.exitCode ?? 0); };
process.on('uncaughtException', e => {
	if (!(e instanceof Exit))
		process.stderr.write(`Uncaught ${util.inspect(e)}\n`);
});
process.on('unhandledRejection', e => {
	if (!(e instanceof Exit))
		process.stderr.write(`Uncaught (in promise) ${util.inspect(e)}\n`);
});

const session = new inspector.Session();
session.connect();
const here = path.join(process.cwd(), 'cell.js');
Object.assign(globalThis, { require: createRequire(here), module: { exports: {} }, exports: {}, __filename: here, __dirname: process.cwd() });
const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, enumerable: false });
hidden('__panda_import', what =>
	import(/^\.\.?\//.test(what) ? url.pathToFileURL(path.resolve(what)).href : what));

let count = 0;
let interrupt = null; /* ends the wait of the cell that runs */
const onWait = () => interrupt?.('KeyboardInterrupt');
const onSignals = { SIGINT() {}, SIGUSR2: onWait }; /* the former must not end us between cells */

function listen() {
	for (const [name, fn] of Object.entries(onSignals))
		if (!process.listeners(name).includes(fn))
			process.on(name, fn);
}
listen();

/* Code that the inspector evaluates has no loader for import(), and no import statements. */
function prepared(code) {
	const loader = 'await __panda_import';
	return code
		.replace(/^([ \t]*)import\s+(['"][^'"]+['"])\s*;?[ \t]*$/gm, (_, s, from) => `${s}${loader}(${from});`)
		.replace(/^([ \t]*)import\s+([\w$]+)\s*(?:,\s*(\{[^}]*\}))?\s+from\s+(['"][^'"]+['"])[ \t]*;?/gm,
			(_, s, name, list, from) => `${s}const { default: ${name}${list ? ', ' + names(list).slice(1, -1) : ''} } = ${loader}(${from});`)
		.replace(/^([ \t]*)import\s+\*\s+as\s+([\w$]+)\s+from\s+(['"][^'"]+['"])[ \t]*;?/gm, (_, s, name, from) => `${s}const ${name} = ${loader}(${from});`)
		.replace(/^([ \t]*)import\s+(\{[^}]*\})\s+from\s+(['"][^'"]+['"])[ \t]*;?/gm, (_, s, list, from) => `${s}const ${names(list)} = ${loader}(${from});`)
		.replace(/(^|[^.\w$])import\s*\(/g, '$1__panda_import(');
}
function names(list) {
	return list.replace(/([\w$]+)\s+as\s+([\w$]+)/g, '$1: $2');
}

/* What an answer of the inspector stands for. */
function valueOf(remote) {
	if (remote.objectId) {
		let got;
		hidden('__panda_take', v => { got = v; });
		session.post('Runtime.callFunctionOn', { objectId: remote.objectId, functionDeclaration: 'function() { "use strict"; __panda_take(this); }' });
		session.post('Runtime.releaseObject', { objectId: remote.objectId });
		return got;
	}
	if (remote.unserializableValue !== undefined)
		return remote.type === 'bigint' ? BigInt(remote.unserializableValue.slice(0, -1)) : Number(remote.unserializableValue);
	return remote.subtype === 'null' ? null : remote.value;
}

function show(value) {
	if (value === undefined)
		return;
	globalThis._ = value;
	let text = util.inspect(value);
	if (text.length > TEXT_MAX)
		text = `${text.slice(0, TEXT_MAX)}... (${text.length - TEXT_MAX} more characters)`;
	const data = { 'text/plain': text };
	const plain = Array.isArray(value) || (value !== null && typeof value === 'object' && [Object.prototype, null].includes(Object.getPrototypeOf(value)));
	if (plain) {
		try {
			const json = JSON.stringify(value);
			if (json && json.length <= JSON_MAX)
				data['application/json'] = json;
		} catch {
			/* it is no tree */
		}
	}
	send('result', { data, main: true });
}

function failed(e) {
	if (e instanceof Exit)
		return Number(e.code) & 0xff;
	const error = e !== null && typeof e === 'object';
	const name = error ? String(e.name ?? e.constructor?.name ?? 'Error') : 'Error';
	const value = error ? String(e.message ?? '') : util.inspect(e);
	const stack = String((error && e.stack) || `${name}: ${value}`).split('\n')
		.filter(line => !/^\s+at .*(node:|\/panda\/repl\.js|__panda_|evalmachine\.)/.test(line));
	send('error', { name, value, traceback: stack.map(line => `${line}\n`) });
	return 1;
}

/*
 * Node counts a SIGINT that came while it stopped watching for one, and interrupts the next code it watches.
 * That shall not be a cell.
 */
function absorb() {
	try {
		vm.runInThisContext(`{ const end = Date.now() + ${ABSORB_MS}; while (Date.now() < end); }`, { breakOnSigint: true });
	} catch {
		/* that was it */
	}
}

function stopped(why, timeoutMs) {
	const late = why === 'timeout';
	if (!late)
		absorb();
	failed(late ? { name: 'TimeoutError', message: `the cell was stopped after ${timeoutMs} ms` } : { name: 'KeyboardInterrupt', message: '' });
	return late ? TIMED_OUT : 1;
}

async function run(code, timeoutMs) {
	const start = Date.now();
	const expression = `${prepared(code)}\n//# sourceURL=cell_${++count}.js`;
	const settled = new Promise((resolve, reject) => {
		interrupt = resolve;
		hidden('__panda_run', () => session.post('Runtime.evaluate', { expression, replMode: true, awaitPromise: true },
			(error, answer) => (error ? reject(error) : resolve(answer))));
	});
	let timer;
	try {
		/* what computes is stopped by the engine, what awaits by the timer */
		vm.runInThisContext('__panda_run()', { breakOnSigint: true, ...(timeoutMs ? { timeout: timeoutMs } : {}) });
		if (timeoutMs)
			timer = setTimeout(() => interrupt('timeout'), Math.max(timeoutMs - (Date.now() - start), 1));
		const answer = await settled;
		drain();
		if (typeof answer === 'string')
			return stopped(answer, timeoutMs);
		if (answer.exceptionDetails) {
			const e = answer.exceptionDetails.exception;
			return failed(e ? valueOf(e) : new Error(answer.exceptionDetails.text));
		}
		show(valueOf(answer.result));
		return 0;
	} catch (e) {
		drain();
		if (e?.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT')
			return stopped('timeout', timeoutMs);
		if (e?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED')
			return stopped('KeyboardInterrupt');
		return failed(e);
	} finally {
		interrupt = null;
		clearTimeout(timer);
	}
}

async function answer(request) {
	/* a signal that was meant for the cell before is looked at before this one begins */
	for (let i = 0; i < 2; i++)
		await new Promise(done => setImmediate(done));
	listen(); /* the last cell may have removed them */
	id = request.id ?? null;
	const exit = await run(request.code, request.timeout_ms);
	send('done', { exit });
	id = null;
}

/* --- requests */

let input = Buffer.alloc(0);
let busy = false;
let ended = false;

function nextRequest() {
	const at = input.indexOf(10);
	if (at < 0 && input.length < 16)
		return null;
	const size = input.subarray(0, Math.max(at, 0)).toString('latin1');
	if (!/^[0-9]{1,12}$/.test(size) || Number(size) > REQUEST_MAX)
		broken(`a request starts with its size in bytes, at most ${REQUEST_MAX}`);
	const end = at + 1 + Number(size);
	if (input.length < end)
		return null;
	let request;
	try {
		request = JSON.parse(input.subarray(at + 1, end).toString());
	} catch {
		/* it is none */
	}
	if (typeof request?.code !== 'string' || !['number', 'undefined'].includes(typeof (request.timeout_ms ?? undefined)))
		broken('a request is an object with code and, if need be, timeout_ms');
	input = input.subarray(end);
	return request;
}

function broken(value) {
	send('error', { name: 'ProtocolError', value, traceback: [] });
	process.reallyExit(2);
}

async function serve() {
	if (busy)
		return;
	busy = true;
	for (let request; (request = nextRequest());)
		await answer(request);
	busy = false;
	if (ended)
		process.reallyExit(0);
}

new net.Socket({ fd: 3, readable: true, writable: false })
	.on('data', data => {
		input = Buffer.concat([input, data]);
		serve();
	})
	.on('end', () => {
		ended = true; /* what has been asked is answered */
		serve();
	})
	.on('error', () => process.reallyExit(0));
