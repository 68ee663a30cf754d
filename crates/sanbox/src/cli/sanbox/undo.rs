//! `sanbox undo`: takes back what a job changed.

use manage::commands;

use super::Arguments;
use crate::cli::format::nice_bytes;
use crate::cli::{self, Outcome, Session};
use crate::serve::management;
use crate::undo;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let [id] = args.operands.as_slice() else {
        return Err(session.misuse("expected the number of a job"));
    };
    let id: u64 = id
        .parse()
        .map_err(|_| session.misuse(format!("'{id}' is no job's number")))?;
    let api = management::open(&session.appliance).await;
    let jobs = api
        .map_err(|error| session.fail(format!("{error:#}")))?
        .jobs
        .clone();
    let refuse = |why: &str| session.fail(format!("cannot undo job {id}: {why}"));
    let Some(job) = jobs.job(id) else {
        return Err(session.fail(format!("there is no job {id}")));
    };
    if job.undone {
        return Err(refuse("it was undone already"));
    }
    let Some(plan) = jobs.undo(id) else {
        return Err(refuse(
            "it changed nothing, or nothing that can be taken back",
        ));
    };
    for change in plan.0.iter().rev() {
        if let Some(why) = undo::conflict(&session.appliance, change).await {
            return Err(refuse(&why));
        }
    }
    if args.has('n') {
        for (line, change) in plan.lines().iter().zip(plan.0.iter().rev()) {
            let lost = undo::loses(&session.appliance, change).await;
            let lost = lost
                .filter(|bytes| *bytes > 0)
                .map_or_else(String::new, |bytes| {
                    format!(" ({} that only it holds are lost)", nice_bytes(bytes))
                });
            session.out.line(format!("would run: {line}{lost}"));
        }
        return Ok(());
    }
    for (tool, arguments) in plan.steps() {
        let line = commands::line(&tool, &arguments);
        session.out.line(&line);
        let step = Session::new(
            session.appliance.clone(),
            session.out.clone(),
            session.caller.clone(),
            &tool,
            &arguments,
            None,
        );
        let exit = cli::run_within(step, &tool, &arguments).await;
        if exit.0 != 0 {
            return Err(refuse(&format!(
                "'{line}' failed; what was undone before it stays so"
            )));
        }
    }
    jobs.note_undone(id);
    Ok(())
}
