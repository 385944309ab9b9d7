"""`lychd sigil` and the first operator, as a fresh installation meets them."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from lychd.sigils import tokens
from lychd.sigils.models import Membership, Sigil, User
from lychd.sigils.operator import DataFolderRefused, ensure_operator
from runs.authority import Scope

pytestmark = pytest.mark.django_db


def sigil(*args: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("sigil", *args, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def sigil_json(*args: str) -> Any:
    return json.loads(sigil(*args, "--json")[0])


@pytest.fixture
def operator(tmp_path: Path) -> User:
    return User.objects.get(username=ensure_operator(tmp_path).username)


def test_create_shows_the_token_alone_on_stdout_so_that_it_can_be_piped(operator: User) -> None:
    out, err = sigil(
        "create", "ci", "--scope", "runs:submit", "--scope", "runs:read", "--source", "ci", "--expires", "30"
    )
    made = Sigil.objects.get(name="ci")
    assert tokens.is_token(out.strip())
    assert made.token_hash == tokens.fingerprint(out.strip())
    assert (made.owner, made.scopes, made.sources) == (operator, ["runs:read", "runs:submit"], ["ci"])
    assert made.expires_at is not None
    assert "only this once" in err


def test_create_says_which_scopes_the_owner_cannot_back() -> None:
    Membership.objects.create(user=User.objects.create_user("anna"), tenant="lab")
    _, err = sigil("create", "bot", "--scope", "runs:read", "--owner", "anna", "--tenant", "lab")
    assert "Without effect until anna has the rights: runs:read." in err


def test_list_shows_states_and_never_a_hash(operator: User) -> None:
    made = sigil_json("create", "ci", "--scope", "runs:read")
    sigil("create", "old", "--scope", "runs:read")
    sigil("revoke", "old")
    assert {one["name"]: one["state"] for one in sigil_json("list")} == {
        "ci": "usable",
        "old": "revoked",
        "operator": "usable",
    }
    assert sigil_json("list", "--tenant", "elsewhere") == []
    told = sigil("list")[0] + json.dumps(sigil_json("list"))
    assert made["token"] not in told
    assert tokens.fingerprint(made["token"]) not in told
    assert "operator" in sigil("list")[0]


def test_revoke_ends_it_and_says_so_the_second_time_too(operator: User) -> None:
    sigil("create", "ci", "--scope", "runs:read")
    assert "is revoked" in sigil("revoke", "ci")[0]
    assert "was revoked before" in sigil("revoke", "ci")[0]
    assert sigil_json("revoke", "ci")["state"] == "revoked"


@pytest.mark.parametrize(
    "args",
    [
        ["create", "ci"],
        ["create", "ci", "--scope", "nonsense"],
        ["create", "bad name", "--scope", "runs:read"],
        ["create", "ci", "--scope", "runs:read", "--owner", "nobody"],
        ["create", "ci", "--scope", "runs:read", "--tenant", "elsewhere"],
        ["create", "ci", "--scope", "runs:read", "--expires", "-1"],
        ["create", "ci", "--scope", "runs:read", "--expires", "nan"],
        ["create", "ci", "--scope", "runs:read", "--expires", "1e300"],
        ["create", "operator", "--scope", "runs:read"],
        ["revoke", "nobody"],
        [],
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_changes_nothing(operator: User, args: list[str]) -> None:
    with pytest.raises(CommandError) as refused:
        sigil(*args)
    assert len(str(refused.value).splitlines()) == 1
    assert Sigil.objects.count() == 1


def test_without_any_person_create_asks_for_an_owner() -> None:
    with pytest.raises(CommandError, match="--owner"):
        sigil("create", "ci", "--scope", "runs:read")


def test_a_fresh_installation_gets_an_operator_a_password_and_a_token_file(tmp_path: Path) -> None:
    account = ensure_operator(tmp_path / "var")
    assert (account.username, account.token_path) == ("operator", tmp_path / "var" / "operator.token")
    user = User.objects.get(username="operator")
    assert account.password is not None
    assert user.check_password(account.password)
    assert user.is_superuser
    assert user.is_staff
    assert list(Membership.objects.filter(user=user).values_list("tenant", flat=True)) == ["default"]
    assert account.token_path is not None
    assert stat.S_IMODE(account.token_path.stat().st_mode) == 0o600
    kept = Sigil.objects.get(name="operator")
    assert kept.token_hash == tokens.fingerprint(account.token_path.read_text().strip())
    assert set(kept.scopes) == {scope.value for scope in Scope}
    assert list((tmp_path / "var").iterdir()) == [account.token_path]


def test_a_second_start_changes_nothing_and_tells_no_password(tmp_path: Path) -> None:
    ensure_operator(tmp_path)
    before = (tmp_path / "operator.token").read_text(), User.objects.get().password
    account = ensure_operator(tmp_path)
    assert account.password is None
    assert ((tmp_path / "operator.token").read_text(), User.objects.get().password) == before


@pytest.mark.parametrize("how", ["missing", "stale", "not text", "too open"])
def test_a_token_file_that_does_not_serve_is_put_right(tmp_path: Path, how: str) -> None:
    ensure_operator(tmp_path)
    path = tmp_path / "operator.token"
    match how:
        case "missing":
            path.unlink()
        case "stale":
            path.write_text(tokens.mint())
        case "not text":
            path.write_bytes(b"\xff\xfe\x00")
        case _:
            path.chmod(0o644)
    ensure_operator(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Sigil.objects.get().token_hash == tokens.fingerprint(path.read_text().strip())


def test_a_revoked_operator_sigil_is_never_opened_again(tmp_path: Path) -> None:
    ensure_operator(tmp_path)
    tokens.revoke(Sigil.objects.get())
    (tmp_path / "operator.token").unlink()
    account = ensure_operator(tmp_path)
    assert account.token_path is None
    assert not (tmp_path / "operator.token").exists()
    assert Sigil.objects.get().revoked_at is not None


def test_an_existing_superuser_stands_in_and_nobody_is_made(tmp_path: Path) -> None:
    anna = User.objects.create_superuser("anna", password="x")
    account = ensure_operator(tmp_path)
    assert (account.username, account.password) == ("anna", None)
    assert Sigil.objects.get().owner == anna


def test_an_ordinary_person_named_operator_is_not_raised(tmp_path: Path) -> None:
    User.objects.create_user("operator")
    account = ensure_operator(tmp_path)
    assert account.username.startswith("operator-")
    assert not User.objects.get(username="operator").is_superuser


def test_a_data_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataFolderRefused):
        ensure_operator(tmp_path / "file")
