"""A real SLURM of one node on this machine: munged, slurmctld and slurmd, with everything they write in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

STARTING_S = 60.0
CONFIGURATION = """\
ClusterName=audit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
# clusters of many jobs forget ended ones soon
MinJobAge={forget}
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} RealMemory=4000 State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=60 DefaultTime=30 State=UP
"""


def free_ports(number):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def started(*command, folder):
    """A server in the foreground; its own output says why it did not start."""
    with open(folder / f"{os.path.basename(command[0])}.out", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(ready, folder):
    end = time.monotonic() + STARTING_S
    while not ready():
        if time.monotonic() > end:
            logs = [f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.[lo]*")]
            raise AssertionError("SLURM did not start; " + "\n".join(logs))
        time.sleep(0.2)


def idle():
    """True once the node takes jobs."""
    found = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True)
    return found.returncode == 0 and found.stdout.strip() == "idle"


@contextmanager
def slurm(folder, processors=3, forget=300):
    """The environment variables with which the commands of SLURM find the cluster."""
    assert os.geteuid() == 0, "slurmd starts jobs of users, so it needs root"
    assert shutil.which("slurmctld"), "install it: apt-get install slurmctld slurmd slurm-client munge"
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller, node = free_ports(2)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().split(".")[0],
            controller=controller,
            node=node,
            folder=folder,
            processors=processors,
            forget=forget,
        )
    )
    munged = ("/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket")
    places = (f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
    with ExitStack() as stack:
        stack.enter_context(started(*munged, *places, folder=folder))
        wait_until((folder / "munge.socket").exists, folder)
        for server in ("slurmctld", "slurmd"):
            stack.enter_context(started(f"/usr/sbin/{server}", "-D", "-f", str(configuration), folder=folder))
        os.environ["SLURM_CONF"] = str(configuration)
        try:
            wait_until(idle, folder)
            yield configuration
        finally:
            del os.environ["SLURM_CONF"]
