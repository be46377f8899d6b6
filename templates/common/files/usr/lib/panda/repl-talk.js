'use strict';
/*
 * repl-talk.js - the thread of repl.js that talks: requests on fd 3 and answers on fd 4 as in repl.py, what subprocesses print
 * on fds 5 and 6, interrupts on fd 7. It never runs a cell, so it hears and answers whatever a cell does, and what it
 * writes is never cut short.
 */
const fs = require('fs');
const inspector = require('inspector');
const net = require('net');
const { workerData: { port, acked } } = require('worker_threads');

const REQUEST_MAX = 64 << 20; // bytes of one request
const PIPE_BYTES = 64 << 10;  // what a pipe holds
const BEHIND_MAX = 1 << 20;   // bytes to be written before those who print have to wait
const PRESS_MS = 20;          // between two looks whether a cell has been stopped
const END_MS = 1000;          // how long the cells' thread, or what it waits for, has to end by itself
const CHASE_MS = 5, CHASES = 200; // how often we look after those who were told to end
const TIMED_OUT = 124;        // as timeout(1) says

const main = new inspector.Session();
main.connectToMainThread();
const out = new net.Socket({ fd: 4, readable: false, writable: true }).on('error', () => process.kill(process.pid, 'SIGKILL'));

let cell = null; /* the one that runs: { id, n, ticks, timer } */
let count = 0;
let free = 0; /* the last cell that is known to be stopped */
const nap = new Int32Array(new SharedArrayBuffer(4));

function send(type, rest, sent) {
	out.write(`${JSON.stringify({ id: cell?.id ?? null, type, ...rest }, wellFormed)}\n`, sent);
}

/* JSON for others: half a surrogate pair is not a character. */
function wellFormed(key, value) {
	return typeof value === 'string' ? value.toWellFormed() : value;
}

/* --- what subprocesses print */

const others = [5, 6].map(fd => {
	const decoder = new TextDecoder('utf-8');
	const socket = new net.Socket({ fd, readable: true, writable: false });
	const print = data => {
		const text = decoder.decode(data, { stream: true });
		if (text)
			send(fd === 5 ? 'stdout' : 'stderr', { text });
		if (out.writableLength > BEHIND_MAX)
			socket.pause();
	};
	socket.on('data', print);
	out.on('drain', () => socket.resume());
	return { fd, print };
});

/* What was printed before this moment: no more than a pipe holds. */
function drain() {
	for (const { fd, print } of others)
		for (let all = 0, data; all < PIPE_BYTES && (data = readNow(fd)); all += data.length)
			print(data);
}

function readNow(fd) {
	const data = Buffer.allocUnsafe(PIPE_BYTES);
	try {
		return data.subarray(0, fs.readSync(fd, data));
	} catch {
		return null; /* EAGAIN */
	}
}

/* --- what cells start */

/* After boot, as the list of processes has it. */
function ticksNow() {
	return Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'latin1')) * 100);
}

/* Map of pid to what it runs: of these processes and their descendants, as far as they began then or later, and live. */
function startedSince(ticks, roots) {
	const children = new Map(), runs = new Map();
	for (const pid of fs.readdirSync('/proc').filter(name => /^[0-9]+$/.test(name)).map(Number)) {
		try {
			const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
			const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' '); /* what stands before may hold anything */
			const parent = Number(fields[1]);
			if (Number(fields[19]) < ticks || fields[0] === 'Z')
				continue;
			runs.set(pid, fs.readFileSync(`/proc/${pid}/cmdline`, 'latin1'));
			children.set(parent, [...children.get(parent) ?? [], pid]);
		} catch {
			/* it is gone */
		}
	}
	const found = new Set(roots);
	for (const pid of found)
		children.get(pid)?.forEach(child => found.add(child)); /* and it is looked at in its turn */
	return new Map([...found].filter(pid => runs.has(pid)).map(pid => [pid, runs.get(pid)]));
}

/*
 * As a terminal would, but those of earlier cells have been left there to stay. A shell that was about to start a command may do so all
 * the same, and wait for it: so we look again at those we have told, and at what they run by then.
 */
function signalChildren(ticks, signal, told = new Map(), times = CHASES) {
	const found = startedSince(ticks, told.size ? told.keys() : [process.pid]);
	found.delete(process.pid); /* if we began with the cell */
	for (const [pid, command] of found) {
		try {
			if (told.get(pid) !== command)
				process.kill(pid, signal);
		} catch {
			/* it is gone */
		}
	}
	if (times && found.size)
		setTimeout(signalChildren, CHASE_MS, ticks, signal, found, times - 1);
}

/* --- cells */

/* An interrupt that was sent before its cell was asked for is not meant for it, also if repl-node has yet to pass it on. */
function forgetInterrupts() {
	const busy = /^State:\tR|^ShdPnd:\t.*[2367abef]$/m; /* runs, or has a SIGINT to deal with */
	while (busy.test(fs.readFileSync(`/proc/${process.ppid}/status`, 'latin1')))
		Atomics.wait(nap, 0, 0, 1);
	readNow(7);
}

function begin({ id, code, timeout_ms: ms }) {
	forgetInterrupts();
	cell = { id, n: ++count, ticks: ticksNow() };
	if (ms)
		cell.timer = setTimeout(stop, ms, 'TimeoutError', `the cell was stopped after ${ms} ms`, TIMED_OUT);
	port.postMessage({ n: count, code });
}

function end(exit) {
	clearTimeout(cell.timer);
	send('done', { exit });
	cell = null;
	serve();
}

/* Until the event loop of the other thread has turned: code that awaits in circles may be between two steps when we look. */
function press(n, since = performance.now()) {
	const all = performance.now() - since > END_MS;
	if (free < n)
		main.post('Runtime.evaluate', { expression: `__panda_stop(${n}, ${all})` }, () => setTimeout(press, PRESS_MS, n, since));
}

/* Ends what computes, what has been put off for later, and what it waits for: execSync() hears nobody else. */
function stop(name, value, exit) {
	if (!cell)
		return;
	const { n, ticks } = cell;
	port.postMessage({ ping: n });
	press(n);
	signalChildren(ticks, 'SIGINT');
	setTimeout(() => free < n && signalChildren(ticks, 'SIGKILL'), END_MS);
	drain();
	send('error', { name, value, traceback: [`${name}: ${value}\n`] });
	end(exit);
}

port.on('message', ({ at, n, type, ...rest }) => {
	const acknowledge = () => {
		Atomics.store(acked, 0, at);
		Atomics.notify(acked, 0);
	};
	if (type === 'stdout' || type === 'stderr') {
		send(type, rest, acknowledge);
		return;
	}
	acknowledge();
	if (type === 'pong')
		free = n;
	if (n !== cell?.n)
		return; /* it was stopped */
	drain();
	if (type === 'end')
		end(rest.exit);
	else
		send(type, rest);
});

new net.Socket({ fd: 7, readable: true, writable: false })
	.on('data', () => stop('KeyboardInterrupt', '', 1));

/* --- requests */

let input = Buffer.alloc(0);
let ended = false;

function nextRequest() {
	const at = input.indexOf(10);
	if (at < 0 && input.length < 16)
		return null;
	const size = input.subarray(0, Math.max(at, 0)).toString('latin1');
	if (!/^[0-9]{1,12}$/.test(size) || Number(size) > REQUEST_MAX)
		return broken(`a request starts with its size in bytes, at most ${REQUEST_MAX}`);
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
		return broken('a request is an object with code and, if need be, timeout_ms');
	input = input.subarray(end);
	return request;
}

function broken(value) {
	send('error', { name: 'ProtocolError', value, traceback: [] }, () => exit(2));
	input = Buffer.alloc(0);
	return null;
}

function exit(code) {
	port.postMessage({ exit: code });
	setTimeout(() => process.kill(process.pid, 'SIGKILL'), END_MS); /* it computes */
}

function serve() {
	if (cell)
		return;
	const request = nextRequest();
	if (request)
		begin(request);
	else if (ended)
		out.write('', () => exit(0)); /* what has been asked is answered */
}

new net.Socket({ fd: 3, readable: true, writable: false })
	.on('data', data => {
		input = Buffer.concat([input, data]);
		serve();
	})
	.on('end', () => {
		ended = true;
		serve();
	})
	.on('error', () => process.kill(process.pid, 'SIGKILL'));
