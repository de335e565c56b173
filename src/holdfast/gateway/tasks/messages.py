"""The ids of tasks in messages: where they are, and their replacement.

2025: `tasks/*`, `task` of a result, `_meta` of all that belongs to a task. 2026: results with `resultType: "task"`,
`tasks/*`, `notifications/tasks`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from holdfast.core.values import members

RELATED = "io.modelcontextprotocol/related-task"
STATUS = "notifications/tasks/status"
NOTICES = (STATUS, "notifications/tasks")
Change: TypeAlias = Callable[[str], str]


def names_tasks(method: str, part: Mapping[str, Any]) -> bool:
    """May the parameters or the result of a method have ids of tasks in them?"""
    if "task" in part or part.get("resultType") == "task" or method.startswith("tasks/") or method in NOTICES:
        return True
    return "_meta" in part and RELATED in members(part["_meta"])


def with_ids(method: str, part: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Parameters or a result of a method with other ids of tasks."""
    changed = dict(part)
    is_of_tasks = method.startswith("tasks/") or method in NOTICES or part.get("resultType") == "task"
    if is_of_tasks and isinstance(part.get("taskId"), str):
        changed["taskId"] = change(part["taskId"])
    if "taskId" in (task := members(part.get("task"))):
        changed["task"] = _with_id(task, change)
    tasks = part.get("tasks")
    if method == "tasks/list" and isinstance(tasks, list):
        changed["tasks"] = [_with_id(members(each), change) for each in cast("list[object]", tasks)]
    inner = members(part.get("result"))
    if is_of_tasks and inner and "_meta" in inner:
        changed["result"] = {**inner, **_with_related(inner, change)}
    return {**changed, **_with_related(part, change)}


def _with_id(task: Mapping[str, Any], change: Change) -> dict[str, Any]:
    id = task.get("taskId")
    return {**task, "taskId": change(id)} if isinstance(id, str) else dict(task)


def _with_related(part: Mapping[str, Any], change: Change) -> dict[str, Any]:
    meta = members(part.get("_meta"))
    related = members(meta.get(RELATED))
    return {"_meta": {**meta, RELATED: _with_id(related, change)}} if "taskId" in related else {}
