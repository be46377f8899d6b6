"""Dockerfiles as people write them, and what each word of them has to do: every build checks itself with its last lines.

Those of test_builds.py came first; these are about what is often written and easily done wrong.
"""
import io
import tarfile

from test_builds import build, order, own  # noqa: F401

APP = {
    "requirements.txt": "flask\n", "app/main.py": "print('app')\n", "app/static/css/site.css": "b{}\n", "tests/test_app.py": "x\n",
    "package.json": "{}\n", "package-lock.json": "{}\n", "server.js": "1\n", "public/index.html": "<p>\n",
    "main.c": '#include <stdio.h>\nint main(void) { puts(VERSION); return 0; }\n', "Makefile": "all:\n\tgcc -DVERSION='\"$(V)\"' -o hello main.c\n",
    "entrypoint.sh": "#!/bin/sh\nset -e\nexec \"$@\"\n", "a.whl": "a", "b.whl": "b", "README.md": "r\n", ".env": "S=1\n",
    ".dockerignore": "**/.env\ntests\n*.md\n",
}

SHAPES = {
    "python with a wheel house": """# syntax=docker/dockerfile:1
ARG PYTHON_VERSION="3.11"
ARG VARIANT="bookworm"
ARG IMAGE="debian:${VARIANT}-slim"
FROM ${IMAGE} AS wheels
WORKDIR /wheels
COPY *.whl ./
RUN ls | sort >index

FROM "${IMAGE}" AS final
ARG PYTHON_VERSION
ENV PYTHONDONTWRITEBYTECODE=1
ENV PYTHONUNBUFFERED=1
ARG UID=10001
RUN adduser \\
    --disabled-password \\
    --gecos "" \\
    --home "/nonexistent" \\
    --shell "/sbin/nologin" \\
    --no-create-home \\
    --uid "${UID}" \\
    appuser 2>/dev/null || useradd --no-create-home --uid "${UID}" appuser
COPY --from=wheels /wheels/*.whl /wheels/index /srv/wheels/
COPY --chown=appuser:appuser app/ /srv/app/
USER appuser
WORKDIR /srv/app
RUN test "$PYTHON_VERSION" = 3.11 && test "$(ls /srv/wheels | xargs)" = "a.whl b.whl index" && \
    touch static/css/new ./new && test "$(stat -c %U:%a static/css)" = appuser:755 && test "$(stat -c %U /srv)" = root
EXPOSE 8000
CMD ["python3", "-c", "import time; time.sleep(1000)"]
""",
    "node with a cache": """FROM base AS deps
WORKDIR /usr/src/app
ENV NODE_ENV production
COPY package*.json ./
RUN --mount=type=cache,target=/root/.npm ls package.json package-lock.json && mkdir -p node_modules/x && echo m >node_modules/x/index.js
FROM base
ENV NODE_ENV=production PORT=8080
WORKDIR /usr/src/app
RUN groupadd -r node && useradd -r -g node node && chown node:node .
COPY --chown=node:node --from=deps /usr/src/app/node_modules ./node_modules
COPY --chown=node:node . .
USER node
RUN test -O node_modules/x -a -O node_modules/x/index.js -a -O public && test ! -e tests -a ! -e .env -a ! -e README.md -a "$NODE_ENV$PORT" = production8080
ENTRYPOINT ["./entrypoint.sh"]
CMD ["sleep", "1000"]
""",
    "make, in two stages": """ARG V=1.0
FROM base AS build
ARG V
ARG TARGETOS
ARG TARGETARCH
WORKDIR /src
COPY main.c Makefile ./
RUN make V="${V}-${TARGETOS}-${TARGETARCH}" && strip hello
FROM build AS test
RUN ./hello | grep -q 9
FROM debian:stable-20990101-slim AS unused
RUN false
FROM base AS runtime
COPY --from=build --chmod=0555 /src/hello /usr/local/bin/hello
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN [[ $(hello) == 2.0-linux-amd64 ]] && [[ $(stat -c %a /usr/local/bin/hello) == 555 ]]
""",
    "scripts in heredocs": """FROM base
RUN <<EOF
#!/usr/bin/env python3
import sys
with open("/root/py", "w") as f:
    f.write(f"{sys.version_info[0]}\\n")
EOF
USER nobody
RUN <<'EOF'
#!/bin/bash
set -e
a=(1 2)
echo ${#a[@]} $0 >/tmp/bash
EOF
USER root
RUN <<EOT
  set -e
  test "$(cat /root/py)" = 3
  case $(cat /tmp/bash) in "2 "*) ;; *) exit 9 ;; esac
  test ! -e /run/panda-script
EOT
COPY --chown=nobody --chmod=0700 <<"SCRIPT" /usr/local/bin/run
#!/bin/sh
echo "$HOME $1"
SCRIPT
RUN test "$(su -s /bin/sh nobody -c 'HOME=h run x')" = 'h x'
""",
    "variables": """FROM base
ENV A=one B="$A-two" C=${A:-none}
ENV A=1
ENV A=2 D=$A
ENV E='$A' F="\\$A" G=a\\ b H="it's" PATH=/opt/bin:$PATH
ARG X=x Y=$X
ARG Z="${A}${X:+y}"
WORKDIR "/with space/$A"
WORKDIR ..
WORKDIR x/../y
RUN test "$PWD" = "/with space/y" && test "$B|$C|$D|$E|$F|$G|$H|$Y|$Z" = '-two|none|1|$A|$A|a b|it'"'"'s||2y' && case $PATH in /opt/bin:/*) ;; *) exit 1 ;; esac
LABEL a=b "c"="d e" \\
      f='g'
""",
    "mounts": """FROM base AS made
RUN mkdir /out && echo made >/out/it
FROM base
ARG WHERE=req.txt
WORKDIR /src
RUN echo mine >there
RUN --mount=type=bind,source=requirements.txt,target=${WHERE} \
    --mount=type=bind,source=app,target=/mnt/app,rw \
    --mount=source=package.json,dst=there \
    --mount=type=bind,from=made,source=/out,target=/out \
    --mount=from=debian:bookworm,src=/etc/os-release,target=/os \
    --mount=type=cache,target=/root/.cache,sharing=locked,id=x \
    --mount=type=tmpfs,target=/scratch \
    grep -qx flask req.txt && echo new >/mnt/app/new && test -f /mnt/app/static/css/site.css -a "$(cat there)" = "{}" -a "$(cat /out/it)" = made && \
    grep -q bookworm /os && echo c >/root/.cache/c && head -c 10000000 /dev/zero >/scratch/big && ! touch req.txt 2>/dev/null && ! touch /out/x 2>/dev/null
RUN --mount=type=bind,target=. test -f requirements.txt -a -f app/main.py -a ! -e tests && ! test -e there
RUN test "$(ls -A . /mnt /scratch 2>/dev/null | xargs)" = ".: there /mnt:" && test "$(cat there)" = mine && test ! -e /out -a ! -e /os -a ! -e /.panda-mounts && \
    test "$(cat /root/.cache/c)" = c && ! grep -E ' (/src|/out|/os|/scratch|/mnt)' /proc/mounts
""",
    "users": """FROM base AS a
RUN groupadd -g 700 web && groupadd -g 701 other && useradd -u 600 -g other app
USER app:web
RUN test "$(id -u):$(id -g)" = 600:700
FROM a
RUN test "$(id -u):$(id -g)" = 600:700
USER 600:other
RUN test "$(id -u):$(id -g)" = 600:701
USER app
RUN test "$(id -u):$(id -g):$HOME" = 600:701:/home/app
USER app:web
""",
    "shells": """FROM base AS a
SHELL ["/bin/bash", "-c"]
FROM a
RUN [[ -n $BASH_VERSION ]]
ENTRYPOINT echo ${BASH_VERSION:?} >/tmp/version; sleep 1000
HEALTHCHECK --interval=1s --timeout=3s --start-period=5s --retries=3 CMD [[ -s /tmp/version ]]
""",
    "places": """FROM base
RUN mkdir -m 700 /closed && mkdir /out && touch /out/f && chown -R nobody:nogroup /out && chmod 711 /out
FROM base
RUN mkdir -m 1770 /there && chown games /there
COPY --from=0 /out /there
COPY --from=0 --chown=games:games /out /
COPY --from=0 /out/f /kept
COPY --parents app/static/css/site.css package.json /par
COPY [ "public/index.html", "/j/" ]
COPY --chown=games public/index.html """ + "/deep" * 300 + """/
COPY public /p/q
COPY public/ app /both
ADD --chown=games x.tgz /
ADD x.tgz /unpacked
RUN test "$(stat -c %a:%U /there)" = 1770:games && test "$(stat -c %a:%U /)" = 755:root && test "$(stat -c %U /f)" = games && \
    test "$(stat -c %U:%G /kept)" = nobody:nogroup && test -f /par/app/static/css/site.css -a -f /par/package.json && \
    test "$(find /deep ! -user games)" = "" && test "$(find /deep | wc -l)" = 301 && test -f /j/index.html -a -f /p/q/index.html -a -f /both/index.html -a -f /both/main.py -a -f /unpacked/in/tgz && \
    test "$(stat -c %U /in /in/tgz | xargs)" = "games games" && test "$(stat -c %U /etc)" = root
""",
    "odd but right": "from base\n\n  run echo a \\\n\n  # in between\n\n && echo b >/root/b\n\nenv A=1 \\\n  B=2\nRun test $A$B = 12 && test -f /root/b\nRUN echo 'a\\\\' >/root/c # a comment for the shell\n"
                     "RUN echo two \\\\\nRUN test \"$(cat /root/c)\" = 'a\\\\' || test \"$(cat /root/c)\" = 'a\\'\nEXPOSE 80 443/tcp 9000-9010 $A\nVOLUME /a /b\nSTOPSIGNAL 9\nONBUILD COPY . /x\n",
    "directives": "# syntax=docker/dockerfile:1.9\n# check=skip=all\n# escape=`\n\nFROM base\nRUN echo a `\n  && echo C:\\ >/root/c\n",
    "a comment is no directive": "# to build: docker build --build-arg A=b .\n# escape = what it says in the manual\nFROM base\nRUN true \\\n && true\n",
}


def test_shapes(own):
    tgz = io.BytesIO()
    with tarfile.open(fileobj=tgz, mode="w:gz") as t:
        d = tarfile.TarInfo("in")
        d.type, d.mode = tarfile.DIRTYPE, 0o755
        t.addfile(d)
        t.addfile(tarfile.TarInfo("in/tgz"))
    files = {**APP, "x.tgz": tgz.getvalue()}
    for what, text in SHAPES.items():
        args = {"build_args": '{"V": "2.0", "PYTHON": "nobody asked"}'} if what.startswith("make") else {}
        try:
            build(own, "x", text, files, replace="true", **args)
        except AssertionError as e:
            raise AssertionError(f"{what}: {e}") from None
        if what == "users":
            assert own.sh(own.create(template="x"), "id -u; id -g; echo $USER")["stdout"] == "600\n700\napp\n"


def test_what_can_only_be_seen_when_it_is_built(own):
    for text, says in [
        ("COPY *.whl /x", "Dockerfile:2: '*.whl' are several files: a destination that ends with '/'"),
        ("COPY --from=base /etc/host* /x", "are several files"),
        ("COPY --from=base /nowhere/* /x/", "Dockerfile:2: nothing in there matches '/nowhere/*'"),
        ("COPY --chown=nobody-knows a.whl /x", "there is no user 'nobody-knows' in the image"),
        ("USER nobody:no-such-group\nRUN true", "Dockerfile:3: there is no group 'no-such-group' in the image"),
        ("RUN <<EOF\n#!/no/such/program\nEOF", "Dockerfile:2"),
        ("ENV A=" + "x" * 1000 + "".join(f"\nENV {chr(66 + i)}=" + f"${chr(65 + i)}" * 4 for i in range(4)), "Dockerfile:6: with its variables, a word is longer"),
        ("ENV A=" + "x" * 100000 + "".join(f"\nENV A{i}=$A" for i in range(12)), "Dockerfile:12: more than 512 variables, or 1024 KiB of them"),
        ("ARG A=1\nENV B=${A:?}\"${C:?no C}\"", "Dockerfile:3: C is not set: no C"),
    ]:
        b, logged = build(own, "x", f"FROM base\n{text}\n", APP, status="failed")
        assert says in b["error"] and says in logged, (b, logged)


def test_what_is_mounted_counts_for_the_cache(own):
    text = ("FROM base AS other\nARG WHAT\nRUN echo $WHAT >/it\nFROM base\nRUN --mount=type=bind,source=a.whl,target=/a --mount=from=other,src=/it,target=/it "
            "cat /a /it >/root/it")
    build(own, "x", text, APP, build_args='{"WHAT": "one"}')
    for files, what, same in (APP, "one", 2), ({**APP, "b.whl": "other"}, "one", 2), ({**APP, "a.whl": "other"}, "one", 1), (APP, "two", 0):
        _, logged = build(own, "x", text, files, build_args=f'{{"WHAT": "{what}"}}', replace="true")
        assert logged.count("(as before)") == same, logged
    assert own.sh(own.create(template="x"), "cat /root/it")["stdout"] == "atwo\n"


def test_variables_of_from(own):
    """They are known before anything is built: so is what is wrong with them."""
    a = order(own, "x", 'ARG A="${B:?which one}"\nFROM $A')
    assert a.status == 400 and a.json["error"] == "Dockerfile:1: B is not set: which one", a
    a = order(own, "x", "ARG A=" + "x" * 100000 + "".join(f"\nARG A{i}=$A" for i in range(12)) + "\nFROM base")
    assert a.status == 400 and a.json["error"] == "Dockerfile:11: more than 512 variables, or 1024 KiB of them", a
    a = order(own, "x", "ARG A\nFROM $A")
    assert a.status == 400 and a.json["error"].startswith("Dockerfile:2: "), a
    a = order(own, "x", "FROM ${A:-base}-no", build_args='{"A": "not declared, so not known"}')
    assert a.status == 400 and "'base-no'" in a.json["error"], a
