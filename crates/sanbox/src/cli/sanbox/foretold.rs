//! What commands of `sanbox replication` would do, printed for `-n`; they do what is said here only as far as nothing changes meanwhile.

use manage::replication::{
    self, Adoption, AdoptionOutcome, Job, ReplicationError, Switchover, TreePlan, Work,
};

use crate::cli::format::nice_bytes;
use crate::cli::{Exit, Outcome, Session};
use crate::replication::{source_of, target_of};

/// Says what a run would send.
pub(super) async fn run(session: &Session, job: &Job) -> Outcome {
    let tree = planned(session, job).await;
    let tree = tree.map_err(|error| refused(session, &job.from, &error))?;
    told_plan(session, job, &tree)
}

fn refused(session: &Session, from: &str, error: &ReplicationError) -> Exit {
    session.fail(format!("cannot replicate '{from}': {error}"))
}

async fn planned(session: &Session, job: &Job) -> Result<TreePlan, ReplicationError> {
    let source = source_of(&session.appliance, job).await?;
    let target = target_of(&session.appliance, job).await?;
    replication::foresee(job, &*source, &*target).await
}

pub(super) fn told_plan(session: &Session, job: &Job, tree: &TreePlan) -> Outcome {
    for dataset in &tree.datasets {
        let what = match &dataset.work {
            Work::Nothing => "has all there is".to_owned(),
            Work::NoSnapshots if job.takes_snapshots() => {
                "would be sent with a snapshot of the job's own".to_owned()
            }
            Work::NoSnapshots => "has no snapshot to be sent".to_owned(),
            Work::Refused(refusal) => format!("would be refused: {refusal}"),
            Work::Send(steps) => {
                let last = steps.last().map_or("", |step| step.snapshot.as_str());
                format!("would be sent: {} streams, up to @{last}", steps.len())
            }
        };
        session
            .out
            .line(format!("{} to {}: {what}", dataset.source, dataset.target));
    }
    Ok(())
}

/// Says whether a dataset of the source would be fenced.
async fn told_fence(
    source: &dyn Switchover,
    job: &Job,
    dataset: &str,
) -> Result<String, ReplicationError> {
    match source.check_fence(dataset, &job.name).await {
        Ok(()) => Ok(format!(
            "{dataset} would be read-only, and neither shared nor mapped"
        )),
        Err(error @ ReplicationError::Denied { .. }) => Ok(format!(
            "{dataset} would go on, and what is written there from then on would be in no copy: {error}"
        )),
        Err(error) => Err(error),
    }
}

/// Says what putting the target in use would do; `failed` says that it would not be done.
pub(super) async fn failover(
    session: &Session,
    job: &Job,
    failed: impl Fn(ReplicationError) -> Exit,
) -> Outcome {
    let line = |text: String| session.out.line(text);
    let target = target_of(&session.appliance, job).await.map_err(&failed)?;
    let found = replication::found_by_failover(job, &*target).await;
    let job = &found.map_err(&failed)?;
    if job.failed_over {
        line(format!("'{}' is turned round already", job.name));
    }
    let root = job.target_root();
    // Before anything else: without the target there is nothing to be put in use.
    let copies = target.list(root).await.map_err(&failed)?;
    let datasets = match planned(session, job).await {
        _ if job.failed_over => names(&*target, root, &job.name).await.map_err(&failed)?,
        Ok(tree) => {
            told_plan(session, job, &tree)?;
            let is_refused = |work: &Work| matches!(work, Work::Refused(_));
            if tree
                .datasets
                .iter()
                .any(|planned| is_refused(&planned.work))
            {
                line("nothing would be put in use before that is decided".to_owned());
                return Err(Exit(1));
            }
            let source = source_of(&session.appliance, job).await.map_err(&failed)?;
            for planned in &tree.datasets {
                let told = told_fence(&*source, job, &planned.source).await;
                line(told.map_err(&failed)?);
            }
            let planned = tree.datasets.into_iter();
            planned.map(|planned| planned.target).collect()
        }
        Err(error @ ReplicationError::Unreachable { .. }) if copies.is_some() => {
            line(format!(
                "what was written since the last run would not be in the copy: {error}"
            ));
            names(&*target, root, &job.name).await.map_err(&failed)?
        }
        Err(error) => return Err(failed(error)),
    };
    writable(session, &datasets);
    Ok(())
}

async fn names(
    side: &dyn Switchover,
    root: &str,
    job: &str,
) -> Result<Vec<String>, ReplicationError> {
    replication::foresee_take_over(side, root, job).await
}

fn writable(session: &Session, datasets: &[String]) {
    for dataset in datasets {
        session.out.line(format!(
            "{dataset} would be writable, and act in place of its source"
        ));
    }
}

/// Says what putting a copy that the job of another appliance sent in use would do.
pub(super) async fn takeover(
    session: &Session,
    side: &dyn Switchover,
    dataset: &str,
    job: &str,
) -> Result<(), ReplicationError> {
    let datasets = names(side, dataset, job).await?;
    session
        .out
        .line(format!("'{dataset}' was sent by the job '{job}'"));
    writable(session, &datasets);
    Ok(())
}

/// Says what bringing back what was written at the target would do.
pub(super) async fn failback(
    session: &Session,
    job: &Job,
    rollback: bool,
    failed: impl Fn(ReplicationError) -> Exit,
) -> Outcome {
    let asked = async {
        let source = source_of(&session.appliance, job).await?;
        let target = target_of(&session.appliance, job).await?;
        replication::foresee_fail_back(job, &*source, &*target, rollback).await
    };
    let foreseen = asked.await.map_err(failed)?;
    told(session, &foreseen)?;
    for Adoption { source, target, .. } in &foreseen {
        session.out.line(format!(
            "{target} would be writable, and {source} its read-only copy"
        ));
    }
    Ok(())
}

/// Says what adopting the target would do.
pub(super) async fn adopt(
    session: &Session,
    job: &Job,
    rollback: bool,
    failed: impl Fn(ReplicationError) -> Exit,
) -> Outcome {
    let asked = async {
        let source = source_of(&session.appliance, job).await?;
        let target = target_of(&session.appliance, job).await?;
        replication::foresee_adoption(job, &*source, &*target, rollback).await
    };
    let foreseen = asked.await.map_err(failed)?;
    told(session, &foreseen)
}

/// Says of each dataset what would be given up and sent. Fails where one would be refused.
fn told(session: &Session, foreseen: &[Adoption]) -> Outcome {
    let line = |text: String| session.out.line(text);
    let mut is_refused = false;
    for Adoption {
        source,
        target,
        outcome,
    } in foreseen
    {
        match outcome {
            AdoptionOutcome::New => line(format!("{source} to {target}: all of it would be sent")),
            AdoptionOutcome::Refused(refusal) => {
                is_refused = true;
                line(format!("{source} to {target}: would be refused: {refusal}"));
            }
            AdoptionOutcome::Since {
                snapshot,
                given_up,
                given_up_bytes,
                sent,
                written_bytes,
            } => {
                let mut lost: Vec<String> =
                    given_up.iter().map(|name| format!("@{name}")).collect();
                if *given_up_bytes > 0 {
                    let bytes = nice_bytes(*given_up_bytes);
                    lost.push(format!("{bytes} written since its newest snapshot"));
                }
                if !lost.is_empty() {
                    let lost = lost.join(", ");
                    line(format!(
                        "{target} would go back to @{snapshot}, and lose {lost}"
                    ));
                }
                line(format!(
                    "{source} to {target}: what came after @{snapshot} would be sent: {sent} snapshots, and {} written since",
                    nice_bytes(*written_bytes)
                ));
            }
        }
    }
    match is_refused {
        true => Err(Exit(1)),
        false => Ok(()),
    }
}

/// Says which clones a test would make, or with `end` destroy.
pub(super) async fn test(
    session: &Session,
    job: &Job,
    target: &dyn Switchover,
    end: bool,
) -> Result<(), ReplicationError> {
    if end {
        for clone in replication::test_clones(job, target).await? {
            session.out.line(format!("{clone} would be destroyed"));
        }
        return Ok(());
    }
    for (clone, snapshot) in replication::foresee_test(job, target).await? {
        session.out.line(format!(
            "{clone} would be made, a writable clone of {snapshot}"
        ));
    }
    Ok(())
}
