from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def arithmetic() -> Task:
    samples = [Sample(id=1, input="1+1=", target="2"), Sample(id=2, input="1+2=", target="3")]
    return Task(dataset=samples, solver=generate(), scorer=includes())
