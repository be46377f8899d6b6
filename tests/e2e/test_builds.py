"""Templates that users make: saved from a sandbox, built from a Dockerfile."""
import json
import os

import pytest

from conftest import wait_for


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
        assert sb.save_as_template("mine")["name"] == "mine"
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
ENV NAME=panda GREETING="hello from ${NAME:-nobody}"
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
