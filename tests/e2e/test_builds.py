"""Templates that users make: saved from a sandbox, built from a Dockerfile."""
import http.client
import json
import os
import subprocess

import pytest

from conftest import wait_for
from server import BUILD


def bakes(p):
    """Snapshots that belong to templates; the steps builds keep are not counted."""
    return {n for n in os.listdir(p.data / "store/snapshots") if n.startswith("tpl-") and not n.startswith("tpl-step-")}


def save(p, id, name, expect=201, **kw):
    return p.do("POST", f"/v1/sandboxes/{id}/save-as-template", dict(name=name, **kw), expect=expect)


def other_tenant(p, name="other"):
    return p.do("POST", "/v1/me/tokens", {"label": "t", "tenant": name})["token"]


@pytest.fixture
def own(new_pandad):
    p = new_pandad()
    yield p
    if p.process.poll() is not None:
        p.start()
    for t in p.do("GET", "/v1/templates"):
        if not t["is_global"]:
            p.do("DELETE", f"/v1/templates/{t['name']}")


# ---- from a sandbox ----


def test_a_sandbox_becomes_a_template(own):
    id = own.create()
    own.sh(id, "echo disk >/root/d; echo memory >/dev/shm/m; nohup sleep 3210 >/dev/null 2>&1 & true")
    t = save(own, id, "mine")
    assert (t["name"], t["is_global"], t["base"]) == ("mine", False, "base") and t["size_bytes"] > 0
    own.sh(id, "echo later >/root/d")
    new = own.create(template="mine")
    r = own.sh(new, "cat /root/d /dev/shm/m; pgrep -fx 'sleep 3210' >/dev/null && echo runs; pwd")
    assert r["stdout"] == "disk\nmemory\nruns\n/workspace\n"
    assert own.sh(id, "cat /root/d")["stdout"] == "later\n"
    ids = {own.sh(own.create(template="mine"), "cat /proc/sys/kernel/random/uuid; hostname")["stdout"] for _ in range(3)}
    assert len(ids) == 3


def test_a_saved_template_outlives_its_sandbox_and_restarts(own):
    id = own.create()
    own.sh(id, "echo here >/root/d")
    save(own, id, "mine")
    own.do("DELETE", f"/v1/sandboxes/{id}")
    for end in own.stop, own.kill9:
        end()
        own.start()
        assert own.sh(own.create(template="mine"), "cat /root/d")["stdout"] == "here\n"
    assert own.do("GET", "/v1/templates/mine")["baked"]


def test_a_template_of_a_template(own):
    id = own.create()
    own.sh(id, "echo one >/root/1")
    save(own, id, "one")
    id = own.create(template="one")
    own.sh(id, "echo two >/root/2")
    save(own, id, "two")
    own.do("DELETE", "/v1/templates/one")
    assert own.sh(own.create(template="two"), "cat /root/1 /root/2")["stdout"] == "one\ntwo\n"


def test_replacing_needs_a_word_and_drops_the_old_one(own):
    id = own.create()
    own.sh(id, "echo 1 >/root/d")
    save(own, id, "mine")
    before = bakes(own)
    a = own.ask("POST", f"/v1/sandboxes/{id}/save-as-template", {"name": "mine"})
    assert a.status == 409 and "replace" in a.json["error"], a
    old = own.create(template="mine")
    own.sh(id, "echo 2 >/root/d")
    save(own, id, "mine", replace=True)
    assert own.sh(own.create(template="mine"), "cat /root/d")["stdout"] == "2\n"
    assert own.sh(old, "cat /root/d")["stdout"] == "1\n"
    wait_for("the old bake to go", lambda: len(bakes(own)) == len(before) and bakes(own) != before)


def test_deleting_frees_its_layers(own):
    id = own.create()

    def layers():
        return set(os.listdir(own.data / "store/layers"))

    before, had = layers(), bakes(own)
    own.sh(id, "head -c 8000000 /dev/urandom >/root/d; sync")
    save(own, id, "mine")
    running = own.create(template="mine")
    assert layers() > before
    own.do("DELETE", f"/v1/sandboxes/{id}")  # what it seals is its own, too
    own.do("DELETE", "/v1/templates/mine", expect=204)
    wait_for("its snapshot to go", lambda: bakes(own) == had)
    wait_for("its layers to go", lambda: layers() <= before)
    assert own.sh(running, "wc -c </root/d")["stdout"].strip() == "8000000"
    assert own.ask("DELETE", "/v1/templates/mine").status == 404
    assert own.ask("POST", "/v1/sandboxes", {"template": "mine"}).status == 400


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "-x", "x" * 65, "ä", "a b"])
def test_bad_names(pandad, name):
    a = pandad.ask("POST", f"/v1/sandboxes/{pandad.create()}/save-as-template", {"name": name})
    assert a.status == 400 and "'name'" in a.json["error"], a


@pytest.mark.parametrize("name", ["base", "ubuntu-24.04"])
def test_everybodys_cannot_be_replaced(pandad, name):
    a = pandad.ask("POST", f"/v1/sandboxes/{pandad.create()}/save-as-template", {"name": name, "replace": True})
    assert a.status == 403, a


def test_tenants_do_not_see_each_others(own):
    tokens = {t: other_tenant(own, t) for t in ("a", "a.b", "c")}
    ids = {}
    for t, name in ("a", "b.x"), ("a.b", "x"):  # one file, were dots not told apart
        id = own.do("POST", "/v1/sandboxes", {"template": "base"}, token=tokens[t])["id"]
        own.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": f"echo {t} >/root/d"}, token=tokens[t])
        own.do("POST", f"/v1/sandboxes/{id}/save-as-template", {"name": name}, token=tokens[t])
        ids[t] = id
    assert len(os.listdir(own.data / "templates")) == 3
    for t, name in ("a", "b.x"), ("a.b", "x"):
        id = own.do("POST", "/v1/sandboxes", {"template": name}, token=tokens[t])["id"]
        assert own.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "cat /root/d"}, token=tokens[t])["stdout"] == f"{t}\n"
        for method in "GET", "DELETE":
            assert own.ask(method, f"/v1/templates/{name}", token=tokens["c"]).status == 404
        assert own.ask("POST", "/v1/sandboxes", {"template": name}, token=tokens["c"]).status == 400
        own.do("DELETE", f"/v1/templates/{name}", token=tokens[t])
    for t in tokens:
        for sb in own.do("GET", "/v1/sandboxes", token=tokens[t]):
            own.do("DELETE", f"/v1/sandboxes/{sb['id']}", token=tokens[t])


def test_a_damaged_saved_template_says_so(own):
    save(own, own.create(), "mine")
    own.stop()
    (bake,) = [b for b in bakes(own) if len(b) == 40]
    (own.data / "store/snapshots" / bake / "manifest.json").unlink()
    own.start()
    a = own.ask("POST", "/v1/sandboxes", {"template": "mine"})
    assert a.status >= 500 and "save or build it again" in a.json["error"], a
    assert own.sh(own.create(), "echo fine")["stdout"] == "fine\n"


def test_the_sdk_saves(own):
    with own.client() as c:
        sb = c.sandboxes.create("base")
        sb.run("echo sdk >/root/d")
        assert sb.save_as_template("mine").name == "mine"
        assert c.sandboxes.create("mine").run("cat /root/d").stdout == "sdk\n"


# ---- from a Dockerfile ----


def form(fields, files):
    """multipart/form-data as the SDK sends it: text with CR LF, a file's field name is its path."""
    edge = "----panda7MA4YWxk"
    out = b""
    for k, v in fields.items():
        text = str(v).replace("\r\n", "\n").replace("\n", "\r\n")
        out += f'--{edge}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{text}\r\n'.encode()
    for path, data in files.items():
        data = data.encode() if isinstance(data, str) else data
        out += (f'--{edge}\r\nContent-Disposition: form-data; name="{path}"; filename="{path.split("/")[-1]}"\r\n'
                "Content-Type: application/octet-stream\r\n\r\n").encode() + data + b"\r\n"
    return out + f"--{edge}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={edge}"}


def order(p, name, dockerfile, files=None, token=None, **fields):
    body, headers = form(dict(name=name, dockerfile=dockerfile, size_mb=1024, **fields), files or {})
    return p.ask("POST", "/v1/templates/build", body, headers=headers, token=token)


def log(p, id, follow=False):
    a = p.ask("GET", f"/v1/templates/builds/{id}/logs" + ("?follow=1" if follow else ""), timeout=120)
    assert a.status == 200 and a.headers["content-type"].startswith("text/event-stream"), a
    events = a.body.decode().split("\n\n")
    assert "event: done" in events[-2] and events[-1] == ""
    return "".join(json.loads(e.partition("data: ")[2])["line"] + "\n" for e in events[:-2] if "data: " in e)


def build(p, name, dockerfile, files=None, status="done", **fields):
    a = order(p, name, dockerfile, files, **fields)
    assert a.status == 202, a
    text = log(p, a.json["id"], follow=True)
    b = p.do("GET", f"/v1/templates/builds/{a.json['id']}")
    assert b["status"] == status, f"{b}\n{text}"
    return b, text


def test_a_dockerfile_becomes_a_template(own):
    b, text = build(own, "app", """# syntax=docker/dockerfile:1
ARG WHERE=/srv/app
FROM base
ARG WHERE
ENV NAME=panda
ENV GREETING="hello from ${NAME:-nobody}"
WORKDIR $WHERE
COPY app.py lib ./
COPY --chown=nobody:nogroup --chmod=750 run.sh /usr/local/bin/run
RUN echo "$GREETING" >greeting && \\
    # comments inside are fine
    id -un >>greeting
RUN ["/bin/sh", "-c", "echo exec form >>greeting"]
RUN <<EOF
echo a script >>greeting
EOF
USER nobody
RUN id -un >/tmp/who
EXPOSE 8000
CMD ["python3", "app.py"]
""", {"app.py": "print('app')\n", "lib/one.py": "1\n", "lib/deep/two.py": "2\n", "run.sh": "#!/bin/sh\necho ran\n"})
    assert len(b["id"]) == 16 and int(b["id"], 16) >= 0 and b["ended_at"] >= b["started_at"] and b["bytes"] > 0
    assert "step 1/" in text and "EXPOSE" in text
    id = own.create(template="app")
    r = own.sh(id, "pwd; cat greeting /tmp/who; id -un; echo $GREETING; ls; cat deep/two.py; python3 app.py")
    assert r["stdout"] == ("/srv/app\nhello from panda\nroot\nexec form\na script\nnobody\nnobody\nhello from panda\n"
                           "app.py\ndeep\ngreeting\none.py\n2\napp\n"), r
    assert own.sh(id, "id -un; stat -c '%U %G %a' /usr/local/bin/run", user="root")["stdout"] == "root\nnobody nogroup 750\n"
    t = own.do("GET", "/v1/templates/app")
    assert not t["is_global"] and t["base"] == "base" and t["baked"]
    assert own.do("GET", "/v1/templates/builds")[0]["id"] == b["id"]


def steps(p):
    return {n for n in os.listdir(p.data / "store/snapshots") if n.startswith("tpl-step-")}


def test_a_changed_last_line_costs_only_that_line(own):
    lines = ["FROM base", "RUN head -c 20 /dev/urandom | base64 >/root/first", "COPY a /root/", "RUN echo %s >/root/last"]
    text = "\n".join(lines)
    build(own, "one", text % 1, {"a": "A"})
    _, again = build(own, "two", text % 1, {"a": "A"})
    assert again.count("(as before)") == 3
    _, last = build(own, "three", text % 2, {"a": "A"})
    assert last.count("(as before)") == 2
    _, file = build(own, "four", text % 1, {"a": "B"})
    assert file.count("(as before)") == 1
    seen = [own.sh(own.create(template=t), "cat /root/first /root/a; echo; cat /root/last")["stdout"] for t in ("one", "two", "three", "four")]
    first = seen[0].split("\n")[0]
    assert [s.replace(first, "F") for s in seen] == ["F\nA\n1\n", "F\nA\n1\n", "F\nA\n2\n", "F\nB\n1\n"]
    own.stop()
    own.start()
    _, later = build(own, "one", text % 1, {"a": "A"}, replace="true")
    assert later.count("(as before)") == 3


def test_the_cache_is_a_tenants_own(own):
    token = other_tenant(own)
    build(own, "one", "FROM base\nRUN true")
    a = order(own, "one", "FROM base\nRUN true", token=token)
    assert a.status == 202, a
    b = wait_for("the build", lambda: (x := own.do("GET", f"/v1/templates/builds/{a.json['id']}", token=token))["status"] in ("done", "failed") and x)
    assert b["status"] == "done", b
    logged = own.ask("GET", f"/v1/templates/builds/{a.json['id']}/logs", token=token).body.decode()
    assert "step 1/1" in logged and "as before" not in logged
    assert own.ask("GET", f"/v1/templates/builds/{a.json['id']}").status == 404
    assert own.ask("GET", f"/v1/templates/builds/{a.json['id']}/logs").status == 404
    assert [b["name"] for b in own.do("GET", "/v1/templates/builds")] == ["one"]
    own.do("DELETE", "/v1/templates/one", token=token)


def test_stages(own):
    _, text = build(own, "staged", """FROM base AS never
RUN exit 1
FROM base AS made
RUN mkdir -p /out/bin && echo '#!/bin/sh' >/out/bin/tool && chmod 711 /out/bin/tool && ln -s tool /out/bin/link && echo one >/one
FROM made AS more
RUN echo two >/out/two
FROM debian:12-slim
COPY --from=made /out/bin /usr/local/bin
COPY --from=more /out/two /one /root/
COPY --from=1 /one /root/renamed
""")
    r = own.sh(own.create(template="staged"), "stat -c '%a %N' /usr/local/bin/tool /usr/local/bin/link; cat /root/two /root/one /root/renamed; ls -d /out")
    assert r["stdout"] == "711 '/usr/local/bin/tool'\n777 '/usr/local/bin/link' -> 'tool'\ntwo\none\none\n", r
    assert "exit 1" not in text  # nobody needs that stage


def test_copies_from_images(own):
    """A template of ours, one's own, Debian: without a stage of that name."""
    build(own, "mine", "FROM base\nRUN mkdir /out && echo mine >/out/it && ln -s it /out/link")
    dockerfile = """FROM base AS first
RUN echo first >/it
FROM base
COPY --from=mine /out /from/
COPY --from=debian:bookworm-slim /etc/os-release /from/release
COPY --from=ubuntu-24.04 --chown=nobody /etc/hostname /etc/passwd /from/
COPY --from=0 /it /from/first
COPY --from=mine /out/it /again
"""
    _, text = build(own, "x", dockerfile)
    assert "COPY --from mine\n" in text and text.count("COPY --from mine\n") == 1
    r = own.sh(own.create(template="x"), "cd /from && ls; cat it link first /again; grep -c VERSION_CODENAME=bookworm release; stat -c %U passwd")
    assert r["stdout"].split() == ["first", "hostname", "it", "link", "passwd", "release", "mine", "mine", "first", "mine", "1", "nobody"], r
    _, text = build(own, "y", dockerfile)
    assert text.count("(as before)") == 6, text
    build(own, "mine", "FROM base\nRUN mkdir /out && echo new >/out/it && ln -s it /out/link", replace="true")
    _, text = build(own, "y", dockerfile, replace="true")
    assert "(as before)" not in text.partition("step 2")[2], text
    assert own.sh(own.create(template="y"), "cat /again")["stdout"] == "new\n"


def test_add_unpacks_in_the_guest_only(own, tmp_path):
    import io
    import tarfile
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as t:
        for name in ("good", "../../../escaped", "/absolute"):
            info = tarfile.TarInfo(name)
            info.size = 3
            t.addfile(info, io.BytesIO(b"abc"))
        dev = tarfile.TarInfo("null")
        dev.type, dev.devmajor, dev.devminor = tarfile.CHRTYPE, 1, 3
        t.addfile(dev)
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/shadow"
        t.addfile(link)
    body, headers = form({"name": "x", "dockerfile": "FROM base\nADD x.tar.gz /srv/\nRUN true"}, {"x.tar.gz": data.getvalue()})
    id = own.do("POST", "/v1/templates/build", body, headers=headers)["id"]
    log(own, id, follow=True)
    assert own.do("GET", f"/v1/templates/builds/{id}")["status"] in ("done", "failed")  # that is tar's business, in there
    _, text = build(own, "y", "FROM base\nCOPY x.tar.gz /srv/", {"x.tar.gz": data.getvalue()})
    assert own.sh(own.create(template="y"), "tar -tzf /srv/x.tar.gz 2>/dev/null | head -1")["stdout"] == "good\n"
    for name in "escaped", "absolute":
        assert not os.path.exists(f"/{name}") and not list(own.home.rglob(name))


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..", "", "/", "x" * 2000])
def test_paths_that_lead_out_of_the_context(pandad, name):
    a = order(pandad, "x", "FROM base\nCOPY . /x", {name: "evil"})
    assert a.status == 400, a


@pytest.mark.parametrize("text,says", [
    ("RUN x", "Dockerfile:1: RUN before FROM"),
    ("FROM base\n\nFOO bar", "Dockerfile:3: there is no instruction 'FOO'"),
    ("FROM alpine:3", "Dockerfile:1: there is no template 'alpine:3'"),
    ("FROM base\nCOPY --from=other a b", "Dockerfile:2: --from=other: no earlier stage and no template"),
    ("FROM base\nCOPY --from=debian:2 a b", "Dockerfile:2: 'debian:2' is no Debian that can be had"),
    ("FROM base\nCOPY --from=./no.tar a b", "Dockerfile:2: the archive 'no.tar' is not in the context"),
    ("FROM base\nRUN <<E\nx", "Dockerfile:2: the end 'E'"),
    ("", "Dockerfile:"),
])
def test_a_malformed_dockerfile_is_said_at_once(pandad, text, says):
    a = order(pandad, "x", text)
    assert a.status == 400 and says in a.json["error"], a
    assert pandad.ask("GET", "/v1/templates/x").status == 404


@pytest.mark.parametrize("text,says", [
    ("FROM base\nRUN echo out; echo err >&2; exit 3", "Dockerfile:2: 'RUN echo out; echo err >&2; exit 3' failed with 3"),
    ("FROM base\nRUN [\"/no/such\"]", "Dockerfile:2"),
    ("FROM base\nRUN kill -9 $$", "signal 9"),
    ("FROM base\nCOPY missing /x", "Dockerfile:2: 'missing' is not in the context"),
    ("FROM base\nCOPY ../x /x", "leads out of the context"),
    ("FROM base AS a\nFROM base\nCOPY --from=a /missing /x", "Dockerfile:3: there is no '/missing'"),
    ("FROM base\nADD https://example.invalid/x /x", "ADD does not fetch"),
    ("FROM base\nENV A=\"${B:?must be there}\"", "must be there"),
    ("FROM base\nCOPY --chmod=rwx a /x", "--chmod"),
    ("FROM base\nUSER nobody-knows\nRUN true", "Dockerfile:3"),
])
def test_a_build_that_fails_leaves_nothing(own, text, says):
    had = bakes(own)
    b, logged = build(own, "x", text, {"a": "A"}, status="failed")
    assert says in b["error"] and says in logged, (b, logged)
    if "echo out" in text:
        assert "out\n" in logged and "err\n" in logged
    assert own.ask("GET", "/v1/templates/x").status == 404
    wait_for("its machine to go", lambda: not [m for m in own.machines() if m.startswith("b_")])
    wait_for("its bake to go", lambda: bakes(own) == had)
    assert sorted(os.listdir(own.data / "builds" / b["id"])) == ["build.json", "log"]


def test_who_may_have_a_name(own):
    for text in "base", "ubuntu-24.04":
        assert order(own, text, "FROM base").status == 403
    assert order(own, "a/b", "FROM base").status == 400
    assert order(own, "", "FROM base").status == 400
    build(own, "mine", "FROM base\nRUN echo 1 >/root/d")
    assert order(own, "mine", "FROM base").status == 409
    old = own.create(template="mine")
    had = bakes(own)
    build(own, "mine", "FROM base\nRUN echo 2 >/root/d", replace="true")
    assert own.sh(own.create(template="mine"), "cat /root/d")["stdout"] == "2\n"
    assert own.sh(old, "cat /root/d")["stdout"] == "1\n"
    wait_for("the old bake to go", lambda: len(bakes(own)) == len(had) and bakes(own) != had)
    build(own, "child", "FROM mine\nRUN cat /root/d /root/d >/root/e")
    assert own.sh(own.create(template="child"), "cat /root/e")["stdout"] == "2\n2\n"


def test_what_cannot_be_built(own):
    for fields, files, status in (
        ({"name": "x", "image_ref": "registry/x"}, {}, 400),
        ({"name": "x", "image_ref": "../x"}, {}, 400),
        ({"name": "x"}, {}, 400),
        ({"dockerfile": "FROM base"}, {}, 400),
        ({"name": "x", "dockerfile": "FROM base", "cpu": 65}, {}, 400),
        ({"name": "x", "dockerfile": "FROM base", "memory_mb": "many"}, {}, 400),
        ({"name": "x", "dockerfile": "FROM base", "strange": 1}, {}, 400),
        ({"name": "x", "dockerfile": "FROM base\n" + "#" * (300 << 10)}, {}, 413),
    ):
        body, headers = form(fields, files)
        a = own.ask("POST", "/v1/templates/build", body, headers=headers)
        assert a.status == status and a.json["error"], (fields, a)
    assert own.ask("POST", "/v1/templates/build", {"name": "x"}).status == 400
    body, headers = form({"name": "x", "dockerfile": "FROM base"}, {})
    assert own.ask("POST", "/v1/templates/build", body[:-10], headers=headers).status == 400
    assert not os.listdir(own.data / "builds")


def test_a_context_that_is_too_large(own):
    try:
        a = order(own, "x", "FROM base", {f"f{i}": b"x" * (9 << 20) for i in range(6)})
        assert a.status == 413, a
    except OSError:
        pass  # it hung up while we sent: as good
    wait_for("it to be thrown away", lambda: not os.listdir(own.data / "builds"))


def test_build_args(own):
    build(own, "x", "FROM base\nARG A=1\nARG B\nRUN echo $A $B ${C:-none} >/root/d", build_args='{"A": "one", "C": "no"}')
    assert own.sh(own.create(template="x"), "cat /root/d; echo ${A:-gone}")["stdout"] == "one none\ngone\n"


def test_the_log_comes_while_it_is_built(own):
    id = order(own, "x", "FROM base\nRUN echo early; while [ ! -e /tmp/go ]; do sleep 0.05; done").json["id"]
    c = http.client.HTTPConnection("127.0.0.1", own.port, timeout=60)
    c.request("GET", f"/v1/templates/builds/{id}/logs?follow=1", headers={"Authorization": f"Bearer {own.key}"})
    r = c.getresponse()
    seen = b""
    while b'"early"' not in seen:
        seen += r.read1(4096)
    assert own.do("GET", f"/v1/templates/builds/{id}")["status"] == "running"
    assert "early" in log(own, id)  # without follow: what there is
    c.close()
    own.stop()  # does not wait for it
    own.start()
    b = own.do("GET", f"/v1/templates/builds/{id}")
    assert b["status"] == "failed" and "server ended" in b["error"] and b["ended_at"], b
    assert not [m for m in own.machines() if m.startswith("b_")] and not own.ask("GET", "/v1/templates/x").status == 200


def test_killed_in_the_middle(own):
    had = bakes(own)
    id = order(own, "x", "FROM base\nRUN echo early; sleep 600", {"a": b"x" * 100000}).json["id"]
    wait_for("it to run", lambda: "early" in log(own, id))
    own.kill9()
    own.start()
    b = own.do("GET", f"/v1/templates/builds/{id}")
    assert b["status"] == "failed", b
    assert sorted(os.listdir(own.data / "builds" / id)) == ["build.json", "log"]
    wait_for("its machine to go", lambda: not [m for m in own.machines() if m.startswith("b_")])
    assert bakes(own) == had
    build(own, "x", "FROM base\nRUN true")


def test_turns(own):
    text = "FROM base\nRUN echo %d; while :; do sleep 0.1; done"
    ids = [order(own, f"t{i}", text % i).json["id"] for i in range(3)]
    wait_for("two to run", lambda: [own.do("GET", f"/v1/templates/builds/{i}")["status"] for i in ids] == ["running", "running", "queued"])
    more = [order(own, f"u{i}", text % i) for i in range(6)]
    assert [a.status for a in more] == [202] * 5 + [429], more
    own.stop()
    own.start()
    assert {b["status"] for b in own.do("GET", "/v1/templates/builds")} == {"failed"}


def test_a_log_without_end_is_cut(own):
    b, text = build(own, "x", "FROM base\nRUN yes $(printf %0200d 0) | head -c 8000000")
    assert len(text) < 5 << 20 and "left out" in text and text.endswith("done\n")


# ---- as users do it ----


def test_the_sdk_builds(own, tmp_path):
    from pandastack import TemplateBuildError
    (tmp_path / "app.py").write_text("print('sdk')\n")
    with own.client() as c:
        b = c.templates.build("mine", dockerfile="FROM base\nARG WHO\nENV WHO=$WHO\nCOPY app.py /srv/\nRUN python3 /srv/app.py\n",
                              context={"app.py": tmp_path / "app.py"}, build_args={"WHO": "me"})
        lines = list(c.templates.build_logs(b.id, follow=True))
        assert "sdk" in lines and lines[-1] == "done"
        assert c.templates.wait_for_build(b.id).status == "done"
        assert c.sandboxes.create("mine").run("echo $WHO").stdout == "me\n"
        with pytest.raises(TemplateBuildError, match="Dockerfile:2"):
            c.templates.wait_for_build(c.templates.build("bad", dockerfile="FROM base\nRUN false").id, interval=0.05)


def panda(p, *args, stdin=None):
    env = dict(os.environ, PANDASTACK_API=p.url, PANDASTACK_API_KEY=p.key)
    return subprocess.run([str(BUILD / "src/cli/panda"), *args], env=env, capture_output=True, text=True, timeout=60)


def test_the_command_line_builds_and_saves(own, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/x").write_text("x")
    (tmp_path / "Dockerfile").write_text("FROM base\nARG A=1\nCOPY . /srv/\nRUN ls -A /srv && /srv/sub/run $A\n")
    (tmp_path / "sub/run").write_text("#!/bin/sh\necho ran $1\n")
    (tmp_path / "link").symlink_to("sub/run")
    (tmp_path / "node_modules").mkdir()
    with open(tmp_path / "node_modules/large", "wb") as f:
        f.truncate(60 << 20)  # more than a context may have: what is left out is not sent
    (tmp_path / ".dockerignore").write_text("node_modules\n.dockerignore\n")
    r = panda(own, "template", "build", "mine", str(tmp_path), "--arg", "A=two")
    assert r.returncode == 0 and "\nDockerfile\nsub\nran two\n" in r.stdout and "left out" in r.stderr, r
    r = panda(own, "template", "build", "mine", str(tmp_path))
    assert r.returncode == 125 and "replace" in r.stderr, r
    r = panda(own, "template", "build", "mine", str(tmp_path), "--replace", "--json")
    assert r.returncode == 0 and json.loads(r.stdout)["status"] == "done", r
    (tmp_path / "bad").write_text("FROM base\nRUN exit 5\n")
    r = panda(own, "template", "build", "bad", "-f", str(tmp_path / "bad"))
    assert r.returncode == 125 and "Dockerfile:2" in r.stderr, r
    (tmp_path / "wrong").write_text("FROM base\nWHAT\n")
    r = panda(own, "template", "build", "bad", "-f", str(tmp_path / "wrong"))
    assert r.returncode == 125 and "Dockerfile:2" in r.stderr, r
    assert panda(own, "template", "build", "bad", str(tmp_path / "sub")).returncode == 125
    id = panda(own, "template", "build", "late", "-d", "-f", str(tmp_path / "bad")).stdout.strip()
    r = panda(own, "template", "logs", id)
    assert r.returncode == 0 and "failed with 5" in r.stdout, r
    r = panda(own, "template", "builds")
    assert r.returncode == 0 and id in r.stdout and "mine" in r.stdout, r
    sandbox = own.create(template="mine")
    own.sh(sandbox, "echo kept >/root/d")
    r = panda(own, "template", "save", sandbox, "saved")
    assert (r.returncode, r.stdout) == (0, "saved\n"), r
    assert own.sh(own.create(template="saved"), "cat /root/d")["stdout"] == "kept\n"
    assert panda(own, "template", "save", sandbox, "saved").returncode == 125
    assert panda(own, "template", "save", sandbox, "saved", "--replace").returncode == 0


def test_a_build_has_the_network_of_a_sandbox(own):
    """By what the kernel says of it: nothing is sent."""
    look = "cat /proc/net/route /proc/net/dev | sed 's/[0-9 ]*$//; s/:.*//' | sort"
    there = own.sh(own.create(), look)["stdout"]
    _, text = build(own, "net", f"FROM base AS a\nRUN true\nFROM base\nCOPY --from=a /etc/hostname /x\nRUN {look}")
    assert there in text, (there, text)


def test_a_build_that_hangs_can_be_stopped(own):
    text = "FROM base\nRUN echo %d; trap '' INT TERM; while :; do sleep 0.1; done"
    ids = [order(own, f"t{i}", text % i).json["id"] for i in range(3)]
    wait_for("it to run", lambda: "0\n" in log(own, ids[0]))
    for id in reversed(ids):  # the one that waits for its turn first
        own.do("DELETE", f"/v1/templates/builds/{id}", expect=204)
    for id in ids:
        b = wait_for("its end", lambda: (x := own.do("GET", f"/v1/templates/builds/{id}"))["status"] == "failed" and x)
        assert "stopped by request" in b["error"], b
        own.do("DELETE", f"/v1/templates/builds/{id}", expect=204)
    wait_for("its machine to go", lambda: not [m for m in own.machines() if m.startswith("b_")])
    assert own.ask("DELETE", "/v1/templates/builds/0123456789abcdef").status == 404
    build(own, "fine", "FROM base\nRUN true")


def test_dockerignore_and_patterns(own):
    files = {n: n for n in ("a.py", "b.py", "c.txt", "sub/d.py", "sub/deep/e.log", "node_modules/x/y", "keep.log")}
    files[".dockerignore"] = "# no\nnode_modules/\n**/*.log\n!keep.log\n.dockerignore\n"
    build(own, "x", "FROM base\nCOPY . /all/\nCOPY *.py s?b/*.py /py/\n", files)
    r = own.sh(own.create(template="x"), "cd /all && find . -type f | sort; ls /py")
    assert r["stdout"] == "./a.py\n./b.py\n./c.txt\n./keep.log\n./sub/d.py\na.py\nb.py\nd.py\n", r


def test_a_pattern_of_many_stars_takes_no_time(own):
    name = "a" * 900
    b, _ = build(own, "x", "FROM base\nCOPY " + "a*" * 400 + "b /x", {name: "x"}, status="failed")
    assert "not in the context" in b["error"]


def test_memory_of_another_size(own):
    b, _ = build(own, "big", "FROM base\nRUN echo kept >/root/d\nWORKDIR /srv/x", memory_mb=768)
    assert b["memory_mb"] == 768 and own.do("GET", "/v1/templates/big")["memory_mb"] == 768
    r = own.sh(own.create(template="big"), "cat /root/d; pwd; awk '/MemTotal/ {print ($2 > 650000)}' /proc/meminfo")
    assert r["stdout"] == "kept\n/srv/x\n1\n", r
    small, _ = build(own, "small", "FROM big\nRUN echo more >>/root/d", memory_mb=256)
    r = own.sh(own.create(template="small"), "cat /root/d; awk '/MemTotal/ {print ($2 < 262144)}' /proc/meminfo")
    assert r["stdout"] == "kept\nmore\n1\n", r
    own.stop()
    own.start()
    assert own.sh(own.create(template="small"), "tail -1 /root/d")["stdout"] == "more\n"


# ---- the start command ----


def test_the_start_command_runs_when_a_sandbox_begins(own):
    """CMD, with ENV, WORKDIR and USER; started once, before the bake: every sandbox has it running."""
    b, text = build(own, "web", """FROM base
ENV WORD=spoken
WORKDIR /srv/www
COPY serve.py /usr/local/bin/
RUN chmod 777 .
USER nobody:nogroup
EXPOSE 8000
HEALTHCHECK --interval=5s CMD ["curl", "-fs", "http://127.0.0.1:8000/"]
ENTRYPOINT ["python3", "/usr/local/bin/serve.py"]
CMD ["8000"]
""", {"serve.py": """#!/usr/bin/python3
import http.server, os, sys, uuid
word = f"{os.environ['WORD']} {os.getcwd()} {os.getuid()} {uuid.uuid4()}\\n".encode()
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(word)
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), H).serve_forever()
"""})
    assert "start command" not in text
    a, b = (own.sh(own.create(template="web"), "curl -fs http://127.0.0.1:8000/; id -un")["stdout"] for _ in range(2))
    assert a == b and a.startswith("spoken /srv/www 65534 ") and a.endswith("nobody\n"), (a, b)
    # one that is built on it starts its own, once, and not that of the base
    build(own, "other", "FROM web\nUSER root\nRUN ! curl -fs http://127.0.0.1:8000/\nCMD [\"8001\"]\nHEALTHCHECK CMD curl -fs http://127.0.0.1:8001/")
    r = own.sh(own.create(template="other"), "curl -fs http://127.0.0.1:8001/ | cut -d' ' -f3; curl -s http://127.0.0.1:8000/; pgrep -fc '[s]erve.py 8'")
    assert r["stdout"] == "0\n1\n", r
    # it goes on in what is saved of a sandbox, and in forks
    id = own.create(template="web")
    save(own, id, "saved")
    assert own.sh(own.create(template="saved"), "curl -fs http://127.0.0.1:8000/; id -un")["stdout"] == a
    _, text = build(own, "none", "FROM web\nENTRYPOINT []\nCMD []\nHEALTHCHECK NONE")
    assert own.sh(own.create(template="none"), "pgrep -fc '[s]erve.py 8'")["stdout"] == "0\n"


@pytest.mark.parametrize("end,says", [
    ("CMD exit 3", "has ended (exit code 3)"),
    ("CMD [\"/no/such\"]", "does not start"),
    ("CMD kill -9 $$", "has ended (signal 9)"),
    ("CMD [\"true\"]\nHEALTHCHECK CMD false", "has ended (exit code 0)"),
])
def test_a_start_command_that_does_not_stay_is_said(own, end, says):
    _, text = build(own, "x", f"FROM base\n{end}")
    assert says in text
    assert own.sh(own.create(template="x"), "echo fine")["stdout"] == "fine\n"


# ---- shapes of Dockerfiles as people write them ----

SHAPES = {
    "python service": """# syntax=docker/dockerfile:1.6
ARG PYTHON=3.11
FROM debian:bookworm-slim AS build
ARG PYTHON
ENV PYTHONUNBUFFERED=1 \\
    PIP_NO_CACHE_DIR=off
WORKDIR /app
COPY requirements.txt .
RUN --mount=type=cache,target=/root/.cache python3 -m venv --without-pip /opt/venv && cat requirements.txt >/opt/venv/installed
COPY . .
FROM debian:bookworm-slim
LABEL org.opencontainers.image.source="https://example.invalid" \\
      maintainer=me
RUN set -eux; \\
    groupadd -r app; \\
    useradd -r -g app -d /app app
COPY --from=build --chown=app:app /opt/venv /opt/venv
COPY --from=build --chown=app:app /app /app
ENV PATH="/opt/venv/bin:$PATH"
WORKDIR /app
USER app
STOPSIGNAL SIGINT
EXPOSE 8000/tcp
VOLUME ["/data"]
RUN test "$(command -v python3)" = /opt/venv/bin/python3 && test "$(stat -c %U:%G /app/main.py)" = app:app && id -un | grep -qx app
""",
    "compiled program": """# syntax=docker/dockerfile:1
FROM --platform=linux/amd64 base AS builder
WORKDIR /src
COPY --link hello.c ./
RUN --mount=type=cache,target=/root/.cache,sharing=locked \\
    gcc -Os -static -o /out/hello hello.c 2>/dev/null || (mkdir -p /out && gcc -Os -static -o /out/hello hello.c)
FROM builder AS test
RUN /out/hello | grep -qx hello && exit 7
FROM scratch AS export
COPY --from=builder /out/hello /hello
FROM scratch
COPY --from=export --chmod=0555 /hello /hello
COPY --from=debian:bookworm-slim /etc/ssl/certs /etc/ssl/certs
USER 65532:65532
RUN ["/hello"]
ENTRYPOINT ["/hello"]
""",
    "entry point script": """FROM ubuntu-24.04
ENV DEBIAN_FRONTEND=noninteractive \\
    APP_HOME=/opt/app \\
    OPTS="-a \\"b c\\" --d='e'" LIST=1,2,3
ARG UID=1000
ARG GID=${UID}
RUN groupadd --gid $GID app && useradd --uid $UID --gid $GID --create-home app \\
 && rm -rf /var/lib/apt/lists/* /tmp/* || true
WORKDIR ${APP_HOME}/bin
COPY --chown=app:app entry.sh main.py ./
RUN chmod +x entry.sh \\

 && ./entry.sh >/tmp/said
USER app
RUN test "$(cat /tmp/said)" = "-a \\"b c\\" --d='e' 1,2,3" && test $PWD = /opt/app/bin && test $(id -u):$(id -g) = 1000:1000 && test -O main.py
VOLUME /data
EXPOSE 80 443/udp
HEALTHCHECK --interval=30s --timeout=3s --retries=2 CMD test -f main.py || exit 1
ENTRYPOINT ["./entry.sh"]
CMD ["--serve", "0.0.0.0"]
""",
    "windows line ends": "FROM base\r\nRUN echo one && \\\r\n    echo two >/root/two\r\n\r\nENV A=1\r\n",
    "shell options": "FROM base\nSHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nRUN ! (false | true)\nRUN echo ${BASH_VERSION:?} >/root/v\n",
    "heredocs": "FROM base\nRUN <<'EOF' bash -e\nx=(1 2 3)\necho ${#x[@]} >/root/n\nEOF\nRUN <<EOF\ntest $(cat /root/n) = 3\nEOF\n"
                "COPY <<-'A' <<B /etc/made/\n\t$literal\nA\n${HOME:-none}\nB\nRUN grep -qx '$literal' /etc/made/A && grep -qx none /etc/made/B\n",
    "old ways": "FROM base\nMAINTAINER me\nENV NAME all the rest = of it\nADD app.tgz /opt/\nRUN test \"$NAME\" = 'all the rest = of it' && test -f /opt/in/tgz\nONBUILD RUN true\n",
    "escape": "# escape=`\nFROM base\nRUN echo a `\n b >/root/c\nRUN grep -qx 'a b' /root/c\n",
    "args everywhere": "ARG BASE=base\nFROM ${BASE} AS a\nARG V=1\nARG W=${V}2\nENV OUT=/o$W\nWORKDIR $OUT\nRUN test $PWD = /o12 && echo $W >w\n"
                       "FROM a\nARG W=again\nRUN test \"$W\" = again && test $(cat /o12/w) = 12 && test $OUT = /o12 && test $PWD = /o12\n",
    "comments": "#just a comment\n\n# another\nFROM base # not a comment for Docker either\n",
    "many stages": "FROM base AS a\nRUN echo a >/f\nFROM a AS b\nRUN echo b >>/f\nFROM b AS c\nRUN echo c >>/f\nFROM scratch AS d\nCOPY --from=c /f /f\nFROM base\nCOPY --from=d /f /f\nRUN test \"$(tr -d '\\n' </f)\" = abc\n",
    "copies": "FROM base\nCOPY main.py requirements.txt /x/\nCOPY sub /y\nCOPY sub/ /z/\nCOPY [\"with space.txt\", \"/w/\"]\nCOPY --link --chmod=600 main.py /m\nADD main.py /a/b/\n"
              "RUN test -f /x/main.py -a -f /y/deep -a -f /z/deep -a -f '/w/with space.txt' -a -f /a/b/main.py && test $(stat -c %a /m) = 600\n",
}


def test_shapes_of_dockerfiles(own):
    import io
    import tarfile
    tgz = io.BytesIO()
    with tarfile.open(fileobj=tgz, mode="w:gz") as t:
        i = tarfile.TarInfo("in/tgz")
        t.addfile(i)
    files = {"main.py": "1\n", "requirements.txt": "x\n", "sub/deep": "d", "with space.txt": "s", "app.tgz": tgz.getvalue(),
             "hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); }\n', "entry.sh": '#!/bin/sh\necho "$OPTS" "$LIST"\n'}
    for what, text in SHAPES.items():
        if what == "comments":
            a = order(own, "y", text, files)
            assert a.status == 400 and "Dockerfile:4: FROM takes" in a.json["error"], a
            continue
        build(own, "x", text, files, replace="true")


@pytest.mark.parametrize("line,says", [
    ("RUN", "RUN needs a command"),
    ("COPY a", "COPY needs a source and a destination"),
    ("COPY --nope=1 a b", "COPY does not know the option --nope"),
    ("ENV", "ENV needs a name"),
    ("ENV A", "'A' is not NAME=value"),
    ("ENV =x", "is not NAME=value"),
    ("ENV A=\"x", "a quote has no end"),
    ("ENV A-B!=1", "is no name of a variable"),
    ("WORKDIR", "WORKDIR needs a directory"),
    ("USER", "USER needs a user"),
    ("SHELL /bin/sh", "SHELL needs a list"),
    ("FROM", "FROM takes"),
    ("FROM a b c d", "FROM takes"),
    ("FROM base AS 1x", "is no name for a stage"),
    ("FROM --weird base", "FROM does not know"),
    ("HEALTHCHECK", "HEALTHCHECK takes"),
    ("HEALTHCHECK CMD", "HEALTHCHECK"),
    ("RUN --mount=type=secret,id=x true", "--mount"),
    ("COPY --from=9 a b", "--from=9"),
    ("RUN <<E", "the end 'E'"),
    ("RUM true", "there is no instruction 'RUM'"),
    ("\u00e4 true", "there is no instruction"),
])
def test_every_malformed_line_is_named_with_a_reason(pandad, line, says):
    a = order(pandad, "x", f"FROM base\n# comment\n{line}\n")
    assert a.status == 400 and a.json["error"].startswith("Dockerfile:3: ") and says in a.json["error"], a


def test_a_build_that_fills_its_disk(own):
    """The machine's own disk: the host has room."""
    had = bakes(own)
    b, text = build(own, "x", "FROM base\nRUN fallocate -l 20G /big", status="failed")
    assert "No space left" in text and "Dockerfile:2" in b["error"]
    wait_for("its machine to go", lambda: not [m for m in own.machines() if m.startswith("b_")])
    assert bakes(own) == had and sorted(os.listdir(own.data / "builds" / b["id"])) == ["build.json", "log"]
