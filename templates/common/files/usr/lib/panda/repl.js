'use strict';
/*
 * repl.js - the resident Node.js of a sandbox: runs cells, keeps their variables. Started by repl-node.
 *
 * Cells run in V8's own REPL mode: a `const` or `let` may be said again as the same, `await` works at top level. They are asked for
 * and answered by another thread (repl-talk.js), because an interrupt ends whatever this one computes between any two steps: here is nothing
 * that must not be left half done. process.exit() ends the cell and not us.
 */
const inspector = require('inspector');
const { createRequire } = require('module');
const path = require('path');
const url = require('url');
const util = require('util');
const { promiseHooks } = require('v8');
const { Writable } = require('stream');
const { Worker, MessageChannel } = require('worker_threads');
const reseed = require('./reseed.js');

const TEXT_MAX = 1 << 20;   // characters of a text/plain result; more is cut
const JSON_MAX = 1 << 20;   // characters of an application/json result; larger ones are left out
const CHUNK_MAX = 64 << 10; // characters of one message with output
const AHEAD_MAX = 64;       // messages that may be under way before those who print have to wait

const { port1: port, port2 } = new MessageChannel();
const acked = new Int32Array(new SharedArrayBuffer(4)); /* the last message that was dealt with */
let sent = 0;

new Worker(path.join(__dirname, 'repl-talk.js'), { workerData: { port: port2, acked }, transferList: [port2] })
	.on('error', e => { throw e; });

function post(message) {
	const at = sent = sent + 1 | 0; /* the numbers may have holes */
	port.postMessage({ at, ...message });
	for (let done; (at - (done = Atomics.load(acked, 0)) | 0) > AHEAD_MAX;)
		Atomics.wait(acked, 0, done);
}

/*
 * A stream of Node's own remembers that it is writing, for ever if that is interrupted.
 */
for (const [type, fd] of [['stdout', 1], ['stderr', 2]])
	Object.defineProperty(process, type, {
		configurable: true, enumerable: true,
		value: Object.assign(new Writable(), {
			isTTY: false, columns: 80, fd,
			write(chunk, encoding, done = encoding) {
				const text = typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString();
				for (let i = 0; i < text.length; i += CHUNK_MAX)
					post({ type, text: text.slice(i, i + CHUNK_MAX) });
				if (typeof done === 'function')
					process.nextTick(done);
				return true;
			},
		}),
	});

/* --- cells */

class Exit {
	constructor(code) { this.code = code; }
}
process.exit = code => { throw new Exit(code ?? process.exitCode ?? 0); };
process.on('SIGINT', () => {}); /* repl-node hears it */
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

function show(n, value) {
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
	post({ n, type: 'result', data, main: true });
}

function failed(n, e) {
	if (e instanceof Exit)
		return Number(e.code) & 0xff;
	const error = e !== null && typeof e === 'object';
	const name = error ? String(e.name ?? e.constructor?.name ?? 'Error') : 'Error';
	const value = error ? String(e.message ?? '') : util.inspect(e);
	const stack = String((error && e.stack) || `${name}: ${value}`).split('\n')
		.filter(line => !/^\s+at .*(node:|\/panda\/repl\.js|__panda_|evalmachine\.)/.test(line));
	post({ n, type: 'error', name, value, traceback: stack.map(line => `${line}\n`) });
	return 1;
}

let began = 0; /* the number of the last cell */
let stopped = 0;

/* --- what a cell has begun ends with it if it is stopped: promises and timers know theirs */

const over = new Set(); /* the cells that were */
let current = 0;        /* the one whose code runs; 0: nobody knows */

class Itself {
	constructor(it) { return it; }
}
class Owned extends Itself { /* a field that nobody sees, of an object that was there before */
	#cell;
	constructor(promise) {
		super(promise);
		this.#cell = current;
	}
	static cell(promise) { return #cell in promise ? promise.#cell : 0; }
}

function end() {
	session.post('Runtime.terminateExecution');
	for (;;);
}

promiseHooks.createHook({
	init(promise) { new Owned(promise); },
	before(promise) {
		current = Owned.cell(promise);
		if (over.has(current))
			end();
	},
	after() { current = 0; },
});

for (const name of ['setTimeout', 'setInterval', 'setImmediate']) {
	const set = globalThis[name];
	globalThis[name] = Object.defineProperties(function(call, ...rest) {
		const cell = current;
		return set(typeof call !== 'function' ? call : function(...given) {
			current = cell;
			if (!over.has(cell))
				call.apply(this, given);
			else if (name === 'setInterval')
				clearInterval(this);
			current = 0;
		}, ...rest);
	}, Object.getOwnPropertyDescriptors(set));
}

/*
 * The other thread has it called, also in the middle of what computes: if that is the cell's, or all: whatever holds it up,
 * then it ends here and now.
 */
hidden('__panda_stop', (n, all) => {
	if (n < began)
		return;
	stopped = n; /* what computes in the background may have kept it from its begin */
	over.add(n);
	const { stackTraceLimit, prepareStackTrace } = Error;
	Error.stackTraceLimit = 3;
	Error.prepareStackTrace = (_, frames) => frames.length;
	const frames = new Error().stack; /* ours, and that of the call */
	Object.assign(Error, { stackTraceLimit, prepareStackTrace });
	if (frames > 2 && (all || over.has(current)))
		session.post('Runtime.terminateExecution');
});

function settled(n, error, answer) {
	try {
		if (error)
			return failed(n, error);
		if (answer.exceptionDetails) {
			const e = answer.exceptionDetails.exception;
			return failed(n, e ? valueOf(e) : new Error(answer.exceptionDetails.text));
		}
		show(n, valueOf(answer.result));
		return 0;
	} catch (e) {
		return failed(n, e);
	}
}

/*
 * The first promise of a cell is its own. If that is collected, V8 says so in the middle of the collection, and Node ends
 * because it must not run us then: so it never is. (It holds nothing of the cell.)
 */
const unsettled = new Set();

function run(n, code) {
	let promise;
	const unhook = promiseHooks.onInit(p => {
		unhook();
		unsettled.add(promise = p);
	});
	current = n;
	session.post('Runtime.evaluate', { expression: `${prepared(code)}\n//# sourceURL=cell_${n}.js`, replMode: true, awaitPromise: true },
		(error, answer) => {
			unsettled.delete(promise);
			post({ n, type: 'end', exit: settled(n, error, answer) });
		});
	current = 0;
	unhook(); /* there is none if it does not compile */
}

port.on('message', ({ n, code, ping, exit }) => {
	if (exit !== undefined)
		process.reallyExit(exit);
	current = 0; /* what was stopped may have left it */
	if (ping) {
		over.add(ping); /* it may have come before the call that stops it */
		post({ n: ping, type: 'pong' });
	}
	if (!n || n <= stopped)
		return;
	reseed();
	began = n;
	run(n, code);
});
