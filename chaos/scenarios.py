"""All scenarios, in the order in which they are run."""

from __future__ import annotations

from chaos.scenario import Scenario

SCENARIOS = (
    Scenario(
        name="concurrent",
        title="10,000 concurrent calls",
        promise="limits hold, every call has one result and one record, all slots are given back",
        function="chaos.volume:call_concurrently",
        seconds=30,
    ),
    Scenario(
        name="serial",
        title="300,000 calls one after another",
        promise="memory stays flat, every call has its record",
        function="chaos.volume:call_serially",
        seconds=60,
    ),
    Scenario(
        name="kill",
        title="kill -9, four processes on one SQLite store",
        promise="every acknowledged call has its record, no approval is used twice, every run goes on",
        function="chaos.kills:kill_on_sqlite",
        seconds=110,
    ),
    Scenario(
        name="kill-postgres",
        title="kill -9, four processes on one Postgres store",
        promise="the same",
        function="chaos.kills:kill_on_postgres",
        seconds=60,
    ),
    Scenario(
        name="disk",
        title="a full disk, then kill -9",
        promise="a call that was accepted has its record; calls are accepted again when there is space",
        function="chaos.limits:fill_disk",
        seconds=40,
    ),
    Scenario(
        name="descriptors",
        title="no file descriptors left",
        promise="every call gets a result, nothing is leaked, everything works afterwards",
        function="chaos.limits:exhaust_descriptors",
        seconds=30,
    ),
    Scenario(
        name="clock",
        title="the clock jumps by hours and days",
        promise="no record, entry or run is lost; timeouts are not affected; a used approval stays used",
        function="chaos.clock:jump",
        seconds=20,
    ),
    Scenario(
        name="workers",
        title="worker processes of running tools are killed",
        promise="every call gets a result, no tool runs twice unless it is idempotent, no process is left",
        function="chaos.workers:kill_workers",
        seconds=40,
    ),
    Scenario(
        name="journal",
        title="bytes of the journal are changed or cut off",
        promise="damaged records are reported and never imported, all others are",
        function="chaos.damage:damage_journal",
        seconds=30,
    ),
    Scenario(
        name="database",
        title="bytes of the SQLite file are changed or cut off",
        promise="a clear error or the right records; calls go on, and their records are safe",
        function="chaos.damage:damage_database",
        seconds=40,
    ),
    Scenario(
        name="servers",
        title="hostile MCP servers",
        promise="every call gets its own result or an error, an honest server beside them is not affected",
        function="chaos.servers:call_hostile_servers",
        seconds=60,
    ),
    Scenario(
        name="fleet",
        title="processes that share a limit are killed, and Postgres restarts",
        promise="the limit is never exceeded, and slots of killed processes come back",
        function="chaos.fleet:share_limit",
        seconds=30,
    ),
    Scenario(
        name="balancer",
        title="a server is killed every second, behind a balancer",
        promise="nothing acknowledged is lost, nothing is paid twice, the shared limit holds, clients go on",
        function="chaos.server_fleet:kill_servers",
        seconds=60,
    ),
    Scenario(
        name="restart",
        title="Postgres restarts in the middle of a batch and under live load",
        promise="the same, and every task of the batch finishes",
        function="chaos.server_fleet:restart_database",
        seconds=40,
    ),
    Scenario(
        name="network",
        title="the network between a server and its database is cut",
        promise="the same: the other server goes on, and the first one recovers by itself",
        function="chaos.network:cut_network",
        seconds=60,
    ),
    Scenario(
        name="skew",
        title="the clocks of the servers differ by a day",
        promise="the same",
        function="chaos.server_fleet:disagree_about_time",
        seconds=20,
    ),
    Scenario(
        name="cluster",
        title="nodes of a Ray cluster are removed, and the batch that runs there is killed",
        promise="every task ends exactly once, and no tool runs twice unless it is idempotent",
        function="chaos.cluster:lose_nodes",
        seconds=120,
    ),
)
