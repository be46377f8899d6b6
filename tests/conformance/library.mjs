// Every call of the sandbox scope of @pandastack/sdk, as published, against a pandad. One test per property of `tests`.
//   node library.mjs --list      names
//   node library.mjs NAME        runs one; PANDASTACK_API and PANDASTACK_API_KEY say where
import assert from "node:assert/strict";
import { readFileSync, writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  AuthError, BadRequestError, Client, CommandError, NotFoundError, Sandbox,
} from "@pandastack/sdk";

const client = new Client({ apiUrl: process.env.PANDASTACK_API, apiKey: process.env.PANDASTACK_API_KEY, timeoutMs: 60000 });

async function withSandbox(fn, opts = {}) {
  const sb = await client.sandboxes.create({ template: "base", ...opts });
  try {
    return await fn(sb);
  } finally {
    await sb.kill().catch((e) => { if (!(e instanceof NotFoundError)) throw e; });
  }
}

const tests = {
  async create_get_list_delete() {
    await withSandbox(async (sb) => {
      assert.match(sb.id, /^[0-9a-f-]{36}$/);
      assert.equal(sb.template, "base");
      assert.equal(sb.status, "running");
      const got = await client.sandboxes.get(sb.id);
      assert.equal(got.id, sb.id);
      assert.equal(got.info.metadata.who, "test");
      assert.ok(got.info.boot_ms >= 0 && got.info.created_at);
      assert.ok((await client.sandboxes.list()).some((s) => s.id === sb.id));
      await client.sandboxes.delete(sb.id);
      await assert.rejects(client.sandboxes.get(sb.id), NotFoundError);
    }, { metadata: { who: "test" } });
  },
  async default_template_is_an_alias() {
    const sb = await Sandbox.create({}, client);
    assert.equal((await sb.exec("echo here")).stdout, "here\n");
    await sb.kill();
  },
  async static_get_and_list() {
    await withSandbox(async (sb) => {
      assert.equal((await Sandbox.get(sb.id, client)).id, sb.id);
      assert.ok((await Sandbox.list(client)).length >= 1);
    });
  },
  async unknown_template_is_a_bad_request() {
    await assert.rejects(client.sandboxes.create({ template: "no-such" }), (e) => e instanceof BadRequestError && /base/.test(e.message));
  },
  async unknown_sandbox_is_not_found() {
    await assert.rejects(client.sandboxes.get("00000000-0000-4000-8000-000000000000"), NotFoundError);
  },
  async wrong_key_is_an_auth_error() {
    const other = new Client({ apiUrl: process.env.PANDASTACK_API, apiKey: "pds_00000000000000000000000000000000" });
    await assert.rejects(other.sandboxes.list(), AuthError);
  },
  async exec() {
    await withSandbox(async (sb) => {
      const r = await sb.exec("echo out; echo err >&2; exit 3");
      assert.deepEqual([r.stdout, r.stderr, r.exit_code, r.exitCode], ["out\n", "err\n", 3, 3]);
      assert.ok(r.duration_ms >= 0);
      assert.equal((await sb.commands.run("cat <<E | tr a-z A-Z\nhere\nE")).stdout, "HERE\n");
      await assert.rejects(sb.exec("exit 7", { check: true }), (e) => e instanceof CommandError && e.exitCode === 7);
      assert.equal((await sb.exec("nonsense-command")).exit_code, 127);
      assert.equal((await sb.exec("kill -9 $$")).exit_code, 137);
    });
  },
  async exec_timeout_is_an_observation() {
    await withSandbox(async (sb) => {
      const r = await sb.exec("echo early; sleep 30", { timeoutSeconds: 1 });
      assert.deepEqual([r.stdout, r.exit_code], ["early\n", 124]);
    });
  },
  async exec_stream() {
    await withSandbox(async (sb) => {
      const out = [], err = [];
      const code = await sb.execStream("for i in 1 2 3; do echo line $i; done; echo ä€ >&2; exit 5",
        { onStdout: (c) => out.push(c), onStderr: (c) => err.push(c) });
      assert.deepEqual([code, out.join(""), err.join("")], [5, "line 1\nline 2\nline 3\n", "ä€\n"]);
    });
  },
  async run_code() {
    await withSandbox(async (sb) => {
      assert.equal((await sb.runCode("print('a' * 3)\nprint(\"it's\")", "python")).stdout, "aaa\nit's\n");
      assert.equal((await sb.runCode("echo $((6 * 7))")).stdout, "42\n");
    });
  },
  async files() {
    await withSandbox(async (sb) => {
      const fs = sb.filesystem, odd = "/tmp/a b+c&é.txt";
      assert.deepEqual(await fs.write(odd, "héllo\n"), { path: odd, bytes: 7 });
      assert.equal(await fs.read(odd), "héllo\n");
      assert.equal((await sb.exec(`cat '${odd}'`)).stdout, "héllo\n");
      await fs.write("/deep/er/file", new Uint8Array([0, 1, 2, 255]));
      const st = await fs.stat("/deep/er/file");
      assert.deepEqual([st.name, st.path, st.size, st.is_dir], ["file", "/deep/er/file", 4, false]);
      assert.ok(Math.abs(st.mtime - Date.now() / 1000) < 60);
      assert.deepEqual((await fs.list("/deep")).map((f) => [f.name, f.is_dir]), [["er", true]]);
      assert.deepEqual(await fs.list("/deep/er").then((l) => l.length), 1);
      await sb.exec("mkdir /empty");
      assert.deepEqual(await fs.list("/empty"), []);
      assert.equal(await fs.exists("/deep/er/file"), true);
      assert.equal(await fs.exists("/deep/nobody"), false);
      await assert.rejects(fs.read("/nobody"), NotFoundError);
      await assert.rejects(fs.stat("/nobody"), NotFoundError);
      const seen = [];
      for await (const w of fs.walk("/deep")) seen.push([w.dir, w.files.length]);
      assert.deepEqual(seen, [["/deep", 0], ["/deep/er", 1]]);
    });
  },
  async upload_and_download() {
    await withSandbox(async (sb) => {
      const dir = mkdtempSync(join(tmpdir(), "panda-"));
      const text = "x".repeat(3 << 20) + "\n";
      writeFileSync(join(dir, "up"), text);
      assert.equal((await sb.filesystem.upload(join(dir, "up"), "/root/up")).bytes, text.length);
      await sb.filesystem.download("/root/up", join(dir, "down"));
      assert.equal(readFileSync(join(dir, "down"), "utf8"), text);
    });
  },
  async pause_and_resume() {
    await withSandbox(async (sb) => {
      await sb.pause();
      assert.equal((await client.sandboxes.get(sb.id)).status, "paused");
      await assert.rejects(sb.exec("true"), BadRequestError);
      await sb.resume();
      assert.equal((await sb.exec("echo on")).stdout, "on\n");
    });
  },
  async hibernate_and_wake() {
    await withSandbox(async (sb) => {
      await sb.exec("echo kept >/dev/shm/m");
      await sb.hibernate();
      assert.equal((await client.sandboxes.get(sb.id)).status, "hibernated");
      await sb.wake();
      await sb.wake();
      assert.equal((await sb.exec("cat /dev/shm/m")).stdout, "kept\n");
      await sb.hibernate();
      assert.equal((await sb.exec("cat /dev/shm/m")).stdout, "kept\n");
    });
  },
  async lifecycle() {
    await withSandbox(async (sb) => {
      assert.deepEqual(await sb.setTtl(120).then((l) => l.ttl_seconds), 120);
      assert.equal((await sb.setPersistent(true)).persistent, true);
      const l = await sb.lifecycle();
      assert.deepEqual([l.ttl_seconds, l.persistent, typeof l.idle_seconds], [120, true, "number"]);
      await assert.rejects(sb.setTtl(-5), BadRequestError);
    });
  },
  async snapshot_and_create_from_it() {
    await withSandbox(async (sb) => {
      await sb.exec("echo then >/root/f");
      const s = await sb.snapshot();
      assert.equal(s.sandbox_id, sb.id);
      await sb.exec("echo later >/root/f");
      assert.ok((await client.snapshots.list()).some((x) => x.id === s.id));
      assert.deepEqual((await client.snapshots.list({ sandbox_id: sb.id })).map((x) => x.id), [s.id]);
      assert.equal((await client.snapshots.get(s.id)).template, "base");
      const other = await client.sandboxes.create({ fromSnapshot: s.id });
      assert.equal((await other.exec("cat /root/f")).stdout, "then\n");
      await other.kill();
      await client.snapshots.delete(s.id);
      await assert.rejects(client.snapshots.get(s.id), NotFoundError);
    });
  },
  async fork() {
    await withSandbox(async (sb) => {
      await sb.exec("echo one >/dev/shm/m; echo one >/root/d");
      const child = await sb.fork({ metadata: { kind: "child" } });
      assert.notEqual(child.id, sb.id);
      await sb.exec("echo two >/dev/shm/m");
      assert.equal((await child.exec("cat /dev/shm/m /root/d")).stdout, "one\none\n");
      assert.equal((await client.sandboxes.get(child.id)).info.metadata.kind, "child");
      const plain = await sb.fork();
      assert.equal((await plain.exec("cat /dev/shm/m")).stdout, "two\n");
      await child.kill();
      await plain.kill();
    });
  },
  async fork_tree_and_promote() {
    await withSandbox(async (sb) => {
      const kids = await sb.forkTree({ count: 3, metadata: { round: "1" } });
      assert.equal(kids.length, 3);
      assert.ok(kids.every((k) => k.info.metadata.fork_tree_id && k.info.metadata.round === "1"));
      const r = await kids[1].promote({ cleanupSiblings: true });
      assert.equal(r.winner, kids[1].id);
      assert.deepEqual([...r.deleted].sort(), [kids[0].id, kids[2].id].sort());
      await assert.rejects(client.sandboxes.get(kids[0].id), NotFoundError);
      assert.equal((await kids[1].exec("echo won")).stdout, "won\n");
      await kids[1].kill();
    });
  },
  async explore() {
    await withSandbox(async (sb) => {
      const r = await sb.explore([
        { label: "bad", cmd: "exit 1" },
        { label: "good", cmd: "echo fine >/root/result" },
      ], { cleanupLosers: true });
      assert.equal(r.winnerOutcome.label, "good");
      assert.equal((await r.winner.exec("cat /root/result")).stdout, "fine\n");
      assert.equal(r.reaped.length, 1);
      await r.winner.kill();
    });
  },
  async code_context() {
    await withSandbox(async (sb) => {
      const ctx = await sb.createCodeContext("python");
      await ctx.runCode("x = 20");
      const r = await ctx.runCode("print('said')\nx * 2 + 2");
      assert.equal(r.stdout.includes("said\n"), true);
      assert.equal(r.exit_code, 0);
      assert.ok((r.text ?? r.stdout).includes("42"));
      const bad = await ctx.runCode("1 / 0");
      assert.equal(bad.exit_code, 1);
      assert.match(bad.stderr + (bad.error ?? ""), /ZeroDivisionError/);
      assert.equal((await ctx.runCode("x")).text ?? "20", "20");
      await ctx.close();
    });
  },
  async code_context_timeout_leaves_it_alive() {
    await withSandbox(async (sb) => {
      const ctx = await sb.createCodeContext();
      await ctx.runCode("y = 1");
      await assert.rejects(ctx.runCode("import time; time.sleep(30)", { timeoutSeconds: 1 }), (e) => e.name === "SandboxTimeout" || /timeout/.test(e.message));
      assert.equal((await ctx.runCode("print(y)")).stdout, "1\n");
    });
  },
  async logs() {
    await withSandbox(async (sb) => {
      await sb.exec("echo '<1>to the console' >/dev/kmsg");
      const lines = [];
      for await (const line of sb.logs()) lines.push(line);
      assert.ok(lines.some((l) => l.includes("to the console")), lines.slice(-5).join("\n"));
      let followed = false;
      setTimeout(() => sb.exec("echo '<1>later on' >/dev/kmsg").catch(() => {}), 300);
      for await (const line of sb.logs({ follow: true })) {
        if (line.includes("later on")) { followed = true; break; }
      }
      assert.ok(followed);
    });
  },
  async ports_and_preview() {
    await withSandbox(async (sb) => {
      await sb.exec("mkdir -p /srv/www; echo page >/srv/www/index.html; cd /srv/www; setsid python3 -m http.server 8000 >/dev/null 2>&1 &");
      let urls = {};
      for (let i = 0; i < 100 && !urls[8000]; i++) {
        urls = await sb.previewUrls();
        if (!urls[8000]) await new Promise((r) => setTimeout(r, 50));
      }
      assert.ok(urls[8000], JSON.stringify(urls));
      assert.match(sb.previewUrl(8000), new RegExp(`^https://8000-${sb.id}\\.`));
      // The host name is what counts, not the address it resolves to. It has the id in it, so it needs a key.
      const host = new URL(sb.previewUrl(8000)).host;
      const { request } = await import("node:http");
      const api = new URL(process.env.PANDASTACK_API);
      const body = await new Promise((resolve, reject) => {
        request({ host: api.hostname, port: api.port, path: "/index.html", headers: { host, authorization: `Bearer ${process.env.PANDASTACK_API_KEY}` } }, (res) => {
          let s = "";
          res.on("data", (d) => { s += d; }).on("end", () => resolve(s));
        }).on("error", reject).end();
      });
      assert.equal(body, "page\n");
    });
  },
  async volumes() {
    const v = await client.volumes.create({ name: "node-vol", size_mb: 64 });
    assert.deepEqual([v.name, v.size_mb], ["node-vol", 64]);
    assert.ok((await client.volumes.list()).some((x) => x.name === "node-vol"));
    assert.equal((await client.volumes.get("node-vol")).size_mb, 64);
    await withSandbox(async (sb) => {
      await sb.exec("echo v >/mnt/node-vol/f; sync");
      await assert.rejects(client.volumes.delete("node-vol"), BadRequestError);
    }, { volumes: [{ name: "node-vol" }] });
    await withSandbox(async (sb) => {
      assert.equal((await sb.exec("cat /mnt/node-vol/f")).stdout, "v\n");
      assert.notEqual((await sb.exec("echo w >/mnt/node-vol/f")).exit_code, 0);
    }, { volumes: [{ name: "node-vol", readOnly: true }] });
    await client.volumes.delete("node-vol");
    await assert.rejects(client.volumes.get("node-vol"), NotFoundError);
  },
  async templates() {
    const list = await client.templates.list();
    assert.ok(Array.isArray(list) && list.some((t) => t.name === "base"));
    const t = await client.templates.get("base");
    assert.ok(t.cpu >= 1 && t.memory_mb > 0 && t.is_global);
    assert.ok(Array.isArray(await client.templates.builds()));
    await assert.rejects(client.templates.get("nobody"), NotFoundError);
    await assert.rejects(client.templates.delete("base"), AuthError);
    await assert.rejects(client.templates.buildStatus("0123456789abcdef"), NotFoundError);
  },
  async template_from_dockerfile() {
    const b = await client.templates.buildFromDockerfile({
      name: "node-built",
      dockerfile: "FROM base\nWORKDIR /srv\nCOPY app/ ./\nENV WHO=node\nRUN cat x.txt bin && echo \"  $WHO\" && echo $WHO >who\n",
      context: { "app/x.txt": "text\n", "app/bin": new Uint8Array([98, 10]), "left-out": "" },
      sizeMb: 512, cpu: 1, memoryMb: 512,
    });
    assert.match(b.id, /^[0-9a-f]{16}$/);
    assert.deepEqual([b.name, b.size_mb], ["node-built", 512]);
    assert.ok(["queued", "running"].includes(b.status) && b.started_at);
    const lines = [];
    for await (const line of client.templates.buildLogs(b.id)) lines.push(line);
    assert.ok(["text", "b", "  node"].every((l) => lines.includes(l)), lines.join("\n"));
    const done = await client.templates.waitForBuild(b.id, { intervalMs: 50 });
    assert.equal(done.status, "done");
    const again = [];
    for await (const line of client.templates.buildLogs(b.id, { follow: false })) again.push(line);
    assert.deepEqual(again, lines);
    assert.ok((await client.templates.builds()).some((x) => x.id === b.id));
    const t = await client.templates.get("node-built");
    assert.ok(!t.is_global && t.base === "base" && t.workspace);
    await withSandbox(async (sb) => {
      assert.equal((await sb.exec("pwd; cat who; echo $WHO")).stdout, "/srv\nnode\nnode\n");
    }, { template: "node-built" });
    await assert.rejects(client.templates.buildFromDockerfile({ name: "node-built", dockerfile: "FROM base" }), /already/);
    await client.templates.delete("node-built");
    await assert.rejects(client.templates.get("node-built"), NotFoundError);
  },
  async template_builds_that_fail() {
    await assert.rejects(client.templates.buildFromDockerfile({ name: "bad", dockerfile: "FROM base\nFOO" }),
      (e) => e instanceof BadRequestError && /Dockerfile:2/.test(e.message));
    const b = await client.templates.buildFromDockerfile({ name: "bad", dockerfile: "FROM base\nRUN exit 9" });
    await assert.rejects(client.templates.waitForBuild(b.id, { intervalMs: 50 }), /Dockerfile:2.*9/);
    await assert.rejects(client.templates.register({ name: "bad", imageRef: "a/b" }), /registries/);
    const r = await client.templates.build({ name: "bad", rootfs: new Uint8Array([1, 2]) });
    await assert.rejects(client.templates.waitForBuild(r.id, { intervalMs: 50 }), /no tar archive/);
    await assert.rejects(client.templates.get("bad"), NotFoundError);
  },
  async tokens_and_me() {
    const me = await client.me();
    assert.equal(me.auth_method, "token");
    const t = await client.tokens.create("from node");
    assert.match(t.token, /^pds_[0-9a-f]{32}$/);
    assert.ok((await client.tokens.list()).some((x) => x.prefix === t.prefix && x.label === "from node" && !x.token));
    const other = new Client({ apiUrl: process.env.PANDASTACK_API, apiKey: t.token });
    await other.sandboxes.list();
    await client.tokens.revoke(t.prefix);
    await assert.rejects(other.sandboxes.list(), AuthError);
    assert.match((await client.tokens.create()).token, /^pds_/);
  },
  async await_using_kills() {
    const sb = await client.sandboxes.create({ template: "base" });
    await sb[Symbol.asyncDispose]();
    await assert.rejects(client.sandboxes.get(sb.id), NotFoundError);
  },
  async ttl_and_persistent_at_create() {
    await withSandbox(async (sb) => {
      const l = await sb.lifecycle();
      assert.deepEqual([l.ttl_seconds, l.persistent], [300, true]);
    }, { ttlSeconds: 300, persistent: true });
  },
};

const name = process.argv[2];
if (name === "--list") {
  console.log(Object.keys(tests).join("\n"));
} else {
  await tests[name]();
  console.log("ok", name);
}
