# A day of an administrator, by a client that was generated from the description of the API: a file system is made, shared and written, a snapshot
# taken, a file restored from it, and all of it destroyed.
# usage: openapi.py URL CERTIFICATE KEY   (a pool 'tank' with 'tank/fs', which holds the file 'note')
import ssl
import sys
import time

from sanbox_client import AuthenticatedClient
from sanbox_client.api.default import download, give_command, job_output, list_datasets, list_jobs, list_pools, list_shares, list_snapshots, show_dataset, show_job
from sanbox_client.models import Command, Problem

url, certificate, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key, verify_ssl=ssl.create_default_context(cafile=certificate), timeout=30)


def run(tool, *arguments, state="done"):
    job = give_command.sync(client=client, body=Command(tool=tool, arguments=list(arguments)))
    assert not isinstance(job, Problem), (tool, arguments, job)
    for _ in range(200):
        job = show_job.sync(id=job.id, client=client)
        if job.state != "running":
            break
        time.sleep(0.1)
    assert job.state == state, (tool, arguments, job, job_output.sync(id=job.id, client=client))
    return job


assert [(pool.name, pool.health) for pool in list_pools.sync(client=client)] == [("tank", "ONLINE")]
run("zfs", "create", "-o", "sharenfs=rw", "-o", "mountpoint=/tank/day", "tank/day")
assert "tank/day" in [dataset.name for dataset in list_datasets.sync(client=client).datasets]
assert [share.dataset for share in list_shares.sync(client=client).shares] == ["tank/day"]
compression = {one.name: one.value for one in show_dataset.sync(name="tank/fs", client=client).properties}["compression"]
assert compression == "on", compression
run("zfs", "snapshot", "tank/fs@noon")
assert [snapshot.name for snapshot in list_snapshots.sync(client=client, dataset="tank/fs").snapshots] == ["noon"]
run("sanbox", "rm", "tank/fs:/note")
assert download.sync_detailed(client=client, dataset="tank/fs", path="/note").status_code == 404
run("sanbox", "restore", "tank/fs@noon:/note", "tank/fs:/note")
assert download.sync_detailed(client=client, dataset="tank/fs", path="/note").content == b"first\n"
# What fails says why.
failed = run("zfs", "snapshot", "tank/fs@noon", state="failed")
assert "already exists" in job_output.sync(id=failed.id, client=client).text
assert isinstance(show_dataset.sync(name="tank/none", client=client), Problem)
run("zfs", "destroy", "tank/day")
run("zfs", "destroy", "tank/fs@noon")
assert list_shares.sync(client=client).shares == []
commands = [job.command for job in list_jobs.sync(client=client).jobs]
assert commands[0] == "zfs destroy tank/fs@noon", commands
print(f"interop openapi: {len(commands)} jobs by a generated client")
