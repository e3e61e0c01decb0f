"""What SQLAlchemy's compiler for SQLite does not write, and text that is compiled once."""

import pytest
from sqlalchemy import bindparam, create_engine, func, insert, select, update

from shadowrelay.store import tables
from shadowrelay.store.dialect import CrossJoin, by_way_of, compiled, constant, each_value, through, upsert, use_queue_compiler

R, S = tables.RETRY.c, tables.SEGMENT.c
WITH_MESSAGE = (tables.RETRY, tables.MESSAGE, tables.MESSAGE.c.internal_id == R.message)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_a_partial_index_is_read_by_name_and_with_its_condition() -> None:
    assert (
        "SELECT message.internal_id FROM message INDEXED BY message_undecided WHERE message.role = 'primary' AND message.is_decided = 0"
    ) == one_line(compiled(through(tables.UNDECIDED, tables.MESSAGE.c.internal_id)))


def test_a_hint_stands_at_its_table_in_a_join_that_is_not_reordered() -> None:
    statement = by_way_of(tables.NOTICES, select(R.message).select_from(CrossJoin(*WITH_MESSAGE))).limit(bindparam("limit"))

    assert (
        "SELECT retry.message FROM retry INDEXED BY retry_notice CROSS JOIN message ON message.internal_id = retry.message LIMIT ?"
    ) == one_line(compiled(statement))


def test_statements_that_differ_in_hint_constant_or_join_do_not_share_compiled_text() -> None:
    """An engine keeps what it compiled; the text of one must not be run for the other."""
    engine = create_engine("sqlite://")
    use_queue_compiler(engine)
    texts = []
    with engine.connect() as connection:
        tables.METADATA.create_all(connection)
        statements = [
            *(by_way_of(index, select(R.message)) for index in (tables.DUE, tables.BY_NEXT_HOP)),
            *(select(R.message).where(R.kind == constant(value)) for value in ("a", "b")),
            *(select(R.message).select_from(join) for join in (CrossJoin(*WITH_MESSAGE), tables.RETRY.join(*WITH_MESSAGE[1:]))),
        ]
        for statement in statements:
            texts.append(connection.execute(statement).context.statement)  # type: ignore[attr-defined]
    engine.dispose()

    assert len(statements) == len(set(texts))


def test_the_columns_of_a_compiled_statement_are_in_the_order_of_the_table() -> None:
    assert "INSERT INTO asker (server, asked_at) VALUES (?, ?)" == compiled(insert(tables.ASKER))
    assert "UPDATE segment SET pinned_count=?, last_id=? WHERE segment.segment = ?" == compiled(
        update(tables.SEGMENT).where(S.segment == bindparam("number")), ["pinned_count", "last_id"]
    )
    with pytest.raises(AssertionError, match="not in the order of the table"):
        compiled(insert(tables.SEGMENT), ["last_id", "pinned_count"])


def test_an_upsert_names_the_key_and_what_changes() -> None:
    text = upsert(tables.ASKER, lambda new: {"asked_at": func.max(tables.ASKER.c.asked_at, new.asked_at)})

    assert (
        "INSERT INTO asker (server, asked_at) VALUES (?, ?)"
        " ON CONFLICT (server) DO UPDATE SET asked_at = max(asker.asked_at, excluded.asked_at)"
    ) == text


def test_a_statement_whose_parameters_cannot_be_given_by_position_is_not_compiled() -> None:
    with pytest.raises(AssertionError, match="a value would be lost"):
        compiled(select(R.message).where(R.next_hop == "one"))
    with pytest.raises(AssertionError, match="a parameter stands in two places"):
        compiled(select(R.message).where(R.next_hop == bindparam("name"), R.kind == bindparam("name")))


def test_each_value_of_a_column_is_found_once_in_its_order() -> None:
    engine = create_engine("sqlite://")
    use_queue_compiler(engine)
    with engine.connect() as connection:
        tables.METADATA.create_all(connection)
        row = {"message_id": "", "origin": "", "arrived_at": 0, "envelope": "", "recipients_count": 1}
        row |= {column.name: None if column.nullable else 0 for column in tables.MESSAGE.columns if column.name not in row}
        for number, server in enumerate(["b", "a", "b", "", "c"]):
            values = {"internal_id": number, "message_id": f"{number}", "role": "primary" if server == "c" else "shadow"}
            connection.execute(insert(tables.MESSAGE).values(row | values | {"primary_server": server}))

        found = connection.scalars(each_value(tables.SHADOWS, tables.MESSAGE.c.primary_server)).all()
        none = connection.scalars(each_value(tables.BY_NEXT_HOP, R.next_hop)).all()
    engine.dispose()

    assert (["", "a", "b"], []) == (found, none)
