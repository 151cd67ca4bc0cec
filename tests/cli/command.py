"""The command line, called in this process."""

from mipl.cli import main


def run(capsys, *words):
    """Return exit code, standard output and standard error."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def assert_refused(capsys, words, sentence, files, place):
    """Assert that a command ends with one sentence, and changes nothing in two folders, {f} and {t}."""
    before = sorted(str(path) for path in files.rglob("*"))
    code, out, err = run(capsys, *words.format(f=files, t=place).split())
    assert code == 2
    assert out == ""
    assert err.startswith("mipl: ")
    assert len(err.strip().splitlines()) == 1
    assert sentence in err
    assert sorted(str(path) for path in files.rglob("*")) == before
    assert list(place.iterdir()) == []
