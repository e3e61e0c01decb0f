"""One Spark session for all tests of the report: the JVM takes seconds to start."""

import pytest

from shadowrelay.sla.session import SparkUnavailable, check_spark, spark_session


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The session's start is not part of a test's minute: only what a test itself does is timed."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(config.getini("timeout"), func_only=True))


@pytest.fixture(scope="session")
def spark():
    """A session on two cores. Without Java, or without the extra, the tests that need it are skipped."""
    try:
        check_spark()
    except SparkUnavailable as exc:
        pytest.skip(str(exc))
    session = spark_session("local[2]", driver_memory="2g", shuffle_partitions=2)
    assert "UTC" == session.conf.get("spark.sql.session.timeZone")
    session.range(1).count()  # the first job loads half of Spark
    yield session
    session.stop()
