"""Runs, pool, leases: what an agent author uses. Owns scopes; refuses to speak to a socket itself."""

from holdfast.client.callbacks import Callbacks
from holdfast.client.files import load_servers
from holdfast.client.pool import Pool, PoolStatistics
from holdfast.client.runs import Replaced, Run, close_kept_links
from holdfast.client.scope import current_run, run
from holdfast.client.server import Server

__all__ = [
    "Callbacks",
    "Pool",
    "PoolStatistics",
    "Replaced",
    "Run",
    "Server",
    "close_kept_links",
    "current_run",
    "load_servers",
    "run",
]
