"""The index of jobs by their tags in SQLite. Triggers keep it: a tag is in the extras of its job."""

from __future__ import annotations

_HAS_TAGS = "json_type({row}.text, '$.tags') = 'array'"

TAGS = (
    "create table job_tags(job_id int not null, tag text not null, primary key(job_id, tag)) without rowid",
    "create index jobs_by_tag on job_tags(tag, job_id)",
    f"""create trigger tagged after insert on extras when {_HAS_TAGS.format(row="new")} begin
      insert or ignore into job_tags(job_id, tag)
        select new.job_id, value from json_each(new.text, '$.tags') where type = 'text';
    end""",
    f"""create trigger untagged after delete on extras when {_HAS_TAGS.format(row="old")} begin
      delete from job_tags where job_id = old.job_id;
    end""",
)
