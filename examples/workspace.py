"""A workspace that outlives its sandboxes: every user has a volume, every conversation a fresh machine with it at /workspace.

What a user installs, breaks or leaves running goes with the machine; files stay.
"""
from contextlib import contextmanager

from pandastack import Sandbox, Volume


@contextmanager
def workspace(user):
    """A machine for this user, for as long as the block takes."""
    volume = Volume.get_or_create(name=f"workspace-{user}", size_gb=1)
    with Sandbox.create(template="base", volumes=[volume.mount("/workspace")], ttl_seconds=3600) as sandbox:
        yield sandbox


def main():
    with workspace("ada") as sandbox:
        sandbox.exec("git config --global init.defaultBranch main && git init -q notes && cd notes && echo 'buy lamps' >todo", cwd="/workspace", check=True)
        sandbox.exec("touch /root/outside")

    # Another day, another machine: the files are there, and nothing else is.
    with workspace("ada") as sandbox:
        print("todo:", sandbox.filesystem.read_text("/workspace/notes/todo").strip())
        print("left outside:", sandbox.filesystem.exists("/root/outside"))
        sandbox.exec("echo 'buy bulbs' >>notes/todo", cwd="/workspace", check=True)

    # Others have their own.
    with workspace("grace") as sandbox:
        print("grace has:", sandbox.exec("ls /workspace").stdout.replace("lost+found", "").strip() or "nothing yet")


if __name__ == "__main__":
    main()
