# flask_shop.py
import functools
import os

from a2wsgi import ASGIMiddleware
from flask import Flask, abort, current_app
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Mapped, mapped_column
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from sa_jobqueue import Job, JobRead, enqueue, task
from sa_jobqueue.dashboard import Access, dashboard

app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["SA_JOBQUEUE_DATABASE_URL"]
db = SQLAlchemy(app)


class Purchase(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    receipt: Mapped[str | None]


def in_app_context(handler):
    @functools.wraps(handler)
    def wrapped(*args, **kwargs):
        with app.app_context():
            return handler(*args, **kwargs)

    return wrapped


@task(queue="mail")
@in_app_context
def send(purchase: Purchase) -> None:
    purchase.receipt = f"by {current_app.name}"  # commits with the job


@app.post("/purchases")
def buy():
    purchase = Purchase()
    job = enqueue(send, purchase)
    db.session.add_all([purchase, job])
    db.session.commit()  # the purchase and its job, or neither
    return {"purchase": purchase.id, "job": job.id}


@app.get("/purchases/<int:id>")
def look(id: int):
    return {"receipt": db.session.get_one(Purchase, id).receipt}


@app.get("/jobs/<int:id>")
def status(id: int):
    job = db.session.get(Job, id) or abort(404)
    return JobRead.model_validate(job).model_dump(mode="json", include={"id", "status", "attempt"})


def who(request) -> Access:
    """What this request may see and do: ask your own users here. Until then, nothing but in `flask run --debug`."""
    return Access.READ if app.debug else Access.NONE


with app.app_context():
    db.create_all()
    pages = dashboard(db.engine, access=who)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/ops": ASGIMiddleware(pages)})
