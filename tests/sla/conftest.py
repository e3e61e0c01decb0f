"""One Spark session for all tests of the report: the JVM takes seconds to start."""

import pytest

from shadowrelay.sla.session import IS_BRIEF, IS_QUICK, QUICK_SQL, SparkUnavailable, check_spark, spark_session

SPARK_TEST_SECONDS_MAX = 240  # of a test alone: seconds on a quiet machine, but a JVM that shares two cores with others is slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The session's start is not part of a test's time: only what a test itself does is counted."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_SECONDS_MAX, func_only=True))


@pytest.fixture(scope="session")
def can_run_spark():
    """Without Java, or without the extra, the tests that need it are skipped."""
    try:
        check_spark()
    except SparkUnavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def spark(can_run_spark):
    """A session on two cores."""
    session = spark_session("local[2]", driver_memory="2g", is_small=True)
    assert "UTC" == session.conf.get("spark.sql.session.timeZone")
    session.sparkContext._gateway.gateway_property.enable_memory_management = True  # it makes more than one report
    session.range(1).count()  # the first job loads half of Spark
    yield session
    session.stop()


@pytest.fixture
def compiling_spark(spark):
    """The same session, making Java of its plans and files of its tables as for much input; `spark` does as for little."""
    settings = {
        "spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": "2", "spark.sql.leafNodeDefaultParallelism": "2",
        "spark.sql.autoBroadcastJoinThreshold": "10485760", "spark.sql.optimizer.disableHints": "false",
        "spark.sql.maxSinglePartitionBytes": "128m", IS_QUICK: "false", IS_BRIEF: "false",
    }  # fmt: skip
    before = {name: spark.conf.get(name) for name in settings}
    assert QUICK_SQL | {IS_BRIEF: "true"} == before
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)
