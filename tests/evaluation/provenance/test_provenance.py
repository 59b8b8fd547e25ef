import subprocess
import sys


def test_versions_are_read_once_however_often_they_are_asked_for():
    script = (
        "import sys; from isaaclab_arena.storage.contents import versions; opened = []; "
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None); "
        "versions(); once = sum('METADATA' in name for name in opened); "
        "versions(); print(once > 0, sum('METADATA' in name for name in opened) == once)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "True"]
