import subprocess, sys


def test_m(postgres_url):
    subprocess.run([sys.executable, "/tmp/exp/million.py", postgres_url, "300000"], check=True)
