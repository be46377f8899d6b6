'use strict';
/*
 * reseed.js - new random numbers for a Node.js that runs already when its machine is forked, woken, rewound, or made from a template.
 *
 * Its generators are memory, so each copy of the machine would go on with the same numbers. The interpreter of JavaScript cells has this.
 * A server of your own gets it with `node --require /usr/lib/panda/reseed.js server.js`, and calls require('/usr/lib/panda/reseed.js')()
 * before it draws what must not come twice; without that call it happens when the event loop turns next.
 *
 * New are: all that OpenSSL draws, in each thread (crypto, WebCrypto, TLS, key generation), what node:crypto keeps in stock (randomUUID,
 * randomInt), and Math.random of this realm. As they were: Math.random of vm contexts and worker threads, keys that were there
 * before (also those that a TLS server encrypts its tickets with), and the seeds of V8's hash tables.
 */
const crypto = require('crypto');
const fs = require('fs');

/* panda-init writes it in each life of the machine, after the kernel was seeded. */
const file = process.env.PANDA_GENERATION || '/run/panda/generation';
const UUIDS = 128, INTS = 1024; // what node:crypto draws ahead, or a multiple of it
let openssl = null;
try {
	openssl = require('./reseed.node'); /* of reseed.c */
} catch {
	/* an image without a compiler, or a Node.js that keeps its OpenSSL to itself */
}
let seen;

/* Math.random: V8 seeds its own once for ever. This one is sfc32, of Chris Doty-Humphrey. */
let a, b, c, d;
function next() {
	const t = (a + b | 0) + d | 0;
	d = d + 1 | 0;
	a = b ^ b >>> 9;
	b = c + (c << 3) | 0;
	c = (c << 21 | c >>> 11) + t | 0;
	return t >>> 0;
}
Object.assign(Math, {
	random() { return ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53; },
});

function generation() {
	try {
		return fs.readFileSync(file, 'latin1');
	} catch {
		return null;
	}
}

function reseed() {
	const now = generation();
	if (now === seen)
		return;
	openssl?.add(); /* first: all others draw from it */
	for (let i = 0; i < UUIDS; i++)
		crypto.randomUUID();
	for (let i = 0; i < INTS; i++)
		crypto.randomInt(1);
	[a, b, c, d] = crypto.getRandomValues(new Int32Array(4));
	seen = now; /* an interrupt before this, and it is done again */
}

reseed();
try {
	fs.watch(file, { persistent: false }, reseed).on('error', () => {});
} catch {
	/* this is no machine of ours */
}
module.exports = reseed;
