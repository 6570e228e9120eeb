"""No two jobs are given the same id, whoever else brings ids into the table."""

from __future__ import annotations

import psycopg
import pytest

from supervisor.stores.transfer import TransferRecord
from tests.stores.at_once import Meanwhile
from tests.stores.factories import ON_POSTGRESQL, PostgresFactory, put
from tests.system.command import wait_for

pytestmark = ON_POSTGRESQL
WAITING = "select 1 from pg_locks where not granted and relation = '{s}.jobs'::regclass"


@pytest.mark.parametrize("n", [1, 2, 300])
def test_jobs_that_are_enqueued_while_a_transfer_arrives_get_ids_behind_its_own(factory, tmp_path, n):
    (tmp_path / "source").mkdir()
    source = PostgresFactory(tmp_path / "source")
    target, client, ids = factory.open(), factory.open(), []
    imported = put(source.open(), *["mail"] * 400)

    def enqueue():
        ids.extend(put(client, *["late"] * n))

    late = []

    def batches():
        late.append(Meanwhile(enqueue))
        wait_for(lambda: factory.sql(WAITING).fetchone() is not None)
        yield source.open().export(imported)

    target.import_jobs(TransferRecord("1", "here", "place", False), batches(), max(imported), frozenset())
    late[0].join()
    source.close()
    assert len(ids) == n and min(ids) > 0 and not {*ids} & {*imported}
    factory.check()


def test_an_insert_with_an_id_of_its_own_is_refused_before_it_can_meet_that_of_a_job(factory):
    store = factory.open()
    with pytest.raises(psycopg.errors.GeneratedAlways):
        factory.sql("insert into {s}.jobs(id, handler) values (2, 'mail')")
    assert [put(store), put(store, "a", "b"), len(put(store, *["many"] * 300))] == [[1], [2, 3], 300]
