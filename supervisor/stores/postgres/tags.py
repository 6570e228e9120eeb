"""The index of jobs by their tags in PostgreSQL. Triggers keep it: a tag is in the extras of its job."""

from __future__ import annotations

from supervisor.stores.postgres.functions import BODY

_HAS_TAGS = "position('\"tags\"' in {row}.text) > 0"

TAGS = (
    """create table {s}.job_tags(job_id bigint not null, tag text collate "C" not null, primary key(job_id, tag))""",
    "create index jobs_by_tag on {s}.job_tags(tag, job_id)",
    f"""create function {{s}}.tagged() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        insert into {{s}}.job_tags(job_id, tag)
          select new.job_id, tag from json_array_elements_text(new.text::json -> 'tags') as its(tag) on conflict do nothing;
        return null;
      end {BODY}""",
    f"""create function {{s}}.untagged() returns trigger language plpgsql security definer
      set search_path = pg_catalog, pg_temp as {BODY}
      begin
        delete from {{s}}.job_tags where job_id = old.job_id;
        return null;
      end {BODY}""",
    f"""create trigger tagged after insert on {{s}}.extras for each row when ({_HAS_TAGS.format(row="new")})
      execute function {{s}}.tagged()""",
    f"""create trigger untagged after delete on {{s}}.extras for each row when ({_HAS_TAGS.format(row="old")})
      execute function {{s}}.untagged()""",
    "revoke execute on function {s}.tagged(), {s}.untagged() from public",
)
