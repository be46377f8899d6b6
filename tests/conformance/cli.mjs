// The `pandastack` command line of @pandastack/sdk, as published: every command of the sandbox scope.
//   node cli.mjs --list, node cli.mjs NAME: as library.mjs
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const require = createRequire(import.meta.url);
const program = join(dirname(require.resolve("@pandastack/sdk")), "cli.js");
const dir = mkdtempSync(join(tmpdir(), "panda-cli-"));
const env = { ...process.env, HOME: dir, PANDASTACK_API_URL: process.env.PANDASTACK_API };

function run(...args) {
  return new Promise((resolve) => {
    execFile(process.execPath, [program, ...args], { env, timeout: 60000 }, (e, stdout, stderr) =>
      resolve({ code: e ? e.code : 0, stdout, stderr }));
  });
}

async function ok(...args) {
  const r = await run(...args);
  assert.equal(r.code, 0, `${args.join(" ")}: ${JSON.stringify(r)}`);
  return r.stdout;
}

const json = async (...args) => JSON.parse(await ok(...args));

async function withSandbox(fn, ...args) {
  const { id } = await json("sandbox", "create", "--template", "base", ...args);
  try {
    await fn(id);
  } finally {
    await run("sandbox", "delete", id);
  }
}

const tests = {
  async create_list_get_delete() {
    await withSandbox(async (id) => {
      assert.ok((await json("sandbox", "list")).some((s) => s.id === id));
      const s = await json("sandbox", "get", id);
      assert.deepEqual([s.id, s.metadata.a, s.status], [id, "1", "running"]);
      await ok("sandbox", "delete", id);
      const r = await run("sandbox", "get", id);
      assert.equal(r.code, 1);
      assert.match(r.stderr, /^error: /);
    }, "--metadata", "a=1,b=2", "--ttl", "300");
  },
  async exec_and_run_code() {
    await withSandbox(async (id) => {
      const r = await run("sandbox", "exec", id, "--", "echo out; echo err >&2; exit 4");
      assert.deepEqual([r.code, r.stdout, r.stderr], [4, "out\n", "err\n"]);
      assert.equal(await ok("sandbox", "run-code", id, "--language", "python", "--", "print(6*7)"), "42\n");
    });
  },
  async life() {
    await withSandbox(async (id) => {
      for (const verb of ["pause", "resume", "hibernate", "wake"]) await ok("sandbox", verb, id);
      await ok("sandbox", "set-ttl", id, "--ttl", "120");
      await ok("sandbox", "set-persistent", id, "--persistent", "true");
      const l = await json("sandbox", "lifecycle", id);
      assert.deepEqual([l.ttl_seconds, l.persistent], [120, true]);
    });
  },
  async snapshot_fork_promote() {
    await withSandbox(async (id) => {
      const s = await json("sandbox", "snapshot", id);
      assert.ok((await json("snapshot", "list")).some((x) => x.id === s.id));
      assert.equal((await json("snapshot", "get", s.id)).id, s.id);
      const from = await json("sandbox", "create", "--from-snapshot", s.id);
      await ok("sandbox", "delete", from.id);
      await ok("snapshot", "delete", s.id);
      const child = await json("sandbox", "fork", id, "--metadata", "k=v");
      assert.notEqual(child.id, id);
      await ok("sandbox", "delete", child.id);
      const kids = await json("sandbox", "fork-tree", id, "--count", "2");
      assert.equal(kids.length, 2);
      await ok("sandbox", "promote", kids[0].id);
      for (const k of kids) await ok("sandbox", "delete", k.id);
    });
  },
  async files() {
    await withSandbox(async (id) => {
      await ok("fs", "write", id, "--path", "/root/f", "--content", "text");
      assert.equal((await ok("fs", "read", id, "--path", "/root/f")).trim(), "text");
      writeFileSync(join(dir, "up"), "up\n");
      await ok("fs", "upload", id, "--local", join(dir, "up"), "--remote", "/root/up");
      await ok("fs", "download", id, "--remote", "/root/up", "--local", join(dir, "down"));
      assert.equal(readFileSync(join(dir, "down"), "utf8"), "up\n");
    });
  },
  async logs_and_previews() {
    await withSandbox(async (id) => {
      await ok("sandbox", "exec", id, "--", "echo '<1>hello console' >/dev/kmsg");
      assert.match(await ok("sandbox", "logs", id), /hello console/);
      assert.match(await ok("sandbox", "preview-url", id, "--port", "3000"), new RegExp(`3000-${id}`));
      await ok("sandbox", "preview-urls", id);
    });
  },
  async ssh_is_a_terminal() {
    await withSandbox(async (id) => {
      const p = spawn(process.execPath, [program, "ssh", id], { env, stdio: ["pipe", "pipe", "pipe"] });
      let out = "";
      p.stdout.on("data", (d) => { out += d; });
      const ended = new Promise((r) => p.on("close", r));
      p.stdin.write("echo said-$((40 + 2)); tty; exit 3\n");
      const timer = setTimeout(() => p.kill(), 20000);
      await ended;
      clearTimeout(timer);
      assert.match(out, /said-42/);
      assert.match(out, /\/dev\/pts\//);
      assert.match(out, /\{"exit": ?3/);
    });
  },
  async templates_tokens_me() {
    assert.ok((await json("template", "list")).some((t) => t.name === "base"));
    assert.equal((await json("template", "get", "base")).name, "base");
    assert.ok(Array.isArray(await json("template", "builds")));
    const t = await json("token", "create", "--label", "cli");
    assert.ok((await json("token", "list")).some((x) => x.prefix === t.prefix));
    await ok("token", "revoke", t.prefix);
    assert.equal((await json("me")).auth_method, "token");
    assert.equal((await json("whoami")).auth_method, "token");
  },
  async template_build() {
    const context = mkdtempSync(join(tmpdir(), "panda-ctx-"));
    writeFileSync(join(context, "Dockerfile"), "FROM base\nCOPY hello /srv/hello\nRUN cat /srv/hello\n");
    writeFileSync(join(context, "hello"), "hello\n");
    const r = await run("template", "build", "--name", "cli-built", "--dockerfile", join(context, "Dockerfile"), "--context", context);
    assert.equal(r.code, 0, JSON.stringify(r));
    const b = JSON.parse(r.stdout);
    assert.equal(b.status, "done");
    assert.match(r.stderr, /^hello$/m);
    assert.match(r.stderr, /is ready/);
    assert.equal((await json("template", "build-status", b.id)).status, "done");
    assert.match(await ok("template", "build-logs", b.id), /^hello$/m);
    assert.match(await ok("template", "build-logs", b.id, "--follow"), /^hello$/m);
    assert.ok((await json("template", "builds")).some((x) => x.id === b.id));
    const bad = await run("template", "build", "--name", "cli-bad", "--dockerfile", "FROM base\nRUN exit 4");
    assert.equal(bad.code, 1);
    assert.match(bad.stderr, /build failed: .*Dockerfile:2/);
    await ok("template", "delete", "cli-built");
  },
  async version_needs_no_server() {
    assert.match(await ok("version"), /0\.9\.0|\d+\.\d+/);
  },
};

const name = process.argv[2];
if (name === "--list") {
  console.log(Object.keys(tests).join("\n"));
} else {
  await tests[name]();
  console.log("ok", name);
}
