"""Pytest reads the pages here; the site's own code needs Sphinx and is tested by tests/test_site.py."""

collect_ignore_glob = ["conf.py", "_ext/*.py"]
