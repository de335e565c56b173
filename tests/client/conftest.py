"""No link leaves a task behind."""

from tests.no_tasks import no_tasks_left

__all__ = ["no_tasks_left"]
