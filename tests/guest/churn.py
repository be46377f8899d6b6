"""Works a file system hard, for ever: creates, appends, truncates, renames, links, removes, syncs."""
import os
import random

root = "/root/churn"
os.makedirs(root, exist_ok=True)
for turn in range(1 << 60):
    d = f"{root}/{random.randrange(20)}"
    path = f"{d}/{random.randrange(40)}"
    try:
        match random.randrange(8):
            case 0:
                os.makedirs(d, exist_ok=True)
            case 1 | 2 | 3:
                with open(path, "ab") as f:
                    f.write(os.urandom(random.choice([10, 4096, 100000])))
                    if random.random() < 0.1:
                        os.fsync(f.fileno())
            case 4:
                os.truncate(path, random.randrange(50000))
            case 5:
                os.rename(path, f"{root}/{random.randrange(20)}/{random.randrange(40)}")
            case 6:
                os.link(path, f"{path}-too")
            case 7:
                os.unlink(path if random.random() < 0.5 else f"{path}-too")
    except OSError:
        pass  # not there, or there already: the next turn is different
