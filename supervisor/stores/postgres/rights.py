"""The rights that a role needs to run jobs, compared with those that it has."""

from __future__ import annotations

from supervisor.stores.postgres.connection import Connection, packed

OF_SUPERVISORS = {
    "jobs": ("select", "update", "delete"),
    "attempts": ("select", "insert", "delete"),
    "reports": ("select", "insert", "update"),
    "snoozes": ("select", "insert", "update"),
    "dead_letters": ("select", "insert", "update"),
    "counts": ("select", "insert", "update", "delete"),
    "supervisors": ("select", "insert", "update", "delete"),
    "queues": ("select",),
    "schedules": ("select", "insert", "update"),
    "extras": ("select",),
    "key_holders": ("select",),
    "limits": ("select", "insert", "update", "delete"),
    "limited_leases": ("select", "insert", "update", "delete"),
    "held_back": ("select", "insert", "update", "delete"),
    "group_lines": ("select", "insert", "update", "delete"),
    "parents": ("select",),
    "unique_jobs": ("select", "update", "delete"),
    "expiries": ("select", "update", "delete"),
}
"""The rights by table. Every role may read `turns`."""
FUNCTIONS = (
    "clock()", "put(json)", "jobs_due_here(bigint[])", "jobs_ended(bigint[], boolean)", "jobs_run_again(bigint[])",
    "jobs_lost()", "retake_unique_keys(bigint[])",
    "free_turns(bigint[], boolean)", "forget_groups(bigint)", "set_group_shares(text[], text[], text[], float8[])",
)  # fmt: skip
MISSING = """
  select it.key, string_agg(its.need, ', ' order by its.place), quote_ident(current_user)
  from json_each($1::json) as it,
    json_array_elements_text(it.value) with ordinality as its(need, place)
  where not has_table_privilege(to_regclass($2 || '.' || it.key), its.need)
  group by it.key order by it.key"""
MISSING_FUNCTIONS = """
  select it.name, quote_ident(current_user) from unnest($1::text[]) as it(name)
  where not has_function_privilege((quote_ident($2) || '.' || it.name)::regprocedure, 'execute')"""


class Rights:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def missing_rights(self) -> list[str]:
        schema = self._connection.names.schema
        missing = self._connection.rows(MISSING, packed(OF_SUPERVISORS), schema)
        grants = [f"grant {rights} on {schema}.{table} to {role}" for table, rights, role in missing]
        lacking = self._connection.rows(MISSING_FUNCTIONS, list(FUNCTIONS), self._connection.schema)
        if lacking:
            names = ", ".join(f"{schema}.{name.partition('(')[0]}" for name, _ in lacking)
            grants.append(f"grant execute on function {names} to {lacking[0][1]}")
        return grants
