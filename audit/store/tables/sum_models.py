"""The table of the sums that are kept of a run (`audit.store.sums.kept_sums`)."""

# no `from __future__ import annotations`: SQLAlchemy would evaluate every annotation from its text, at every start

from sqlalchemy import ForeignKey, Integer, Text
from sqlalchemy.orm import Mapped, mapped_column

from audit.store.tables.runs import Base


class RunSumsRow(Base):
    """Sums over the requests and steps of a run that has ended, as JSON text."""

    __tablename__ = "run_sums"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id"), primary_key=True)
    format: Mapped[int] = mapped_column(Integer)
    sums: Mapped[str] = mapped_column(Text)
