# shop_admin.py
import os

from sqladmin import Admin, ModelView
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request

from sa_jobqueue import Job

engine = create_async_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
app = Starlette(debug=os.environ.get("DEBUG") == "1")
admin = Admin(app, engine)


class JobAdmin(ModelView, model=Job):
    column_list = ("id", "task", "queue", "status", "attempt", "run_at")
    column_default_sort = ("id", True)  # the newest first
    column_searchable_list = ("task", "queue")
    can_create = can_edit = can_delete = False

    def is_accessible(self, request: Request) -> bool:
        return app.debug  # ask your own users here


admin.add_view(JobAdmin)
