//! `sanbox job`: commands that run and ran over the API, and what shells changed.

use manage::jobs::{JobState, JobView, Jobs};

use super::Arguments;
use crate::cli::format::{Column, date, table};
use crate::cli::{Outcome, Session};
use crate::serve::management;

/// Jobs listed when no number is given.
const LISTED: usize = 50;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let number = |id: &str| {
        id.parse::<u64>()
            .map_err(|_| session.misuse(format!("'{id}' is no job's number")))
    };
    let api = management::open(&session.appliance).await;
    let jobs = api
        .map_err(|error| session.fail(format!("{error:#}")))?
        .jobs
        .clone();
    match words[..] {
        ["list"] => {
            let count = match args.value('n') {
                Some(text) => text
                    .parse()
                    .map_err(|_| session.misuse(format!("-n {text}: not a number")))?,
                None => LISTED,
            };
            let titles = ["ID", "STATE", "USER", "STARTED", "COMMAND"];
            let columns: Vec<Column> = titles.iter().map(|title| Column::left(title)).collect();
            let row = |job: JobView| {
                vec![
                    job.id.to_string(),
                    job.state.as_str().to_owned(),
                    job.user,
                    date(job.started),
                    job.command,
                ]
            };
            let rows: Vec<_> = jobs.list(None, "", count).into_iter().map(row).collect();
            session.out.text(table(&columns, &rows, args.has('H')));
            Ok(())
        }
        ["show", id] => show(session, &jobs, number(id)?),
        ["cancel", id] => {
            let id = number(id)?;
            let job = jobs.job(id);
            let job = job.ok_or_else(|| session.fail(format!("there is no job {id}")))?;
            if job.state != JobState::Running {
                let state = job.state.as_str();
                return Err(session.fail(format!("job {id} does not run: it is {state}")));
            }
            if !jobs.cancel(id) {
                return Err(session.fail(format!("job {id} was given by a shell: end it there")));
            }
            Ok(())
        }
        _ => Err(session.misuse("list, show ID or cancel ID")),
    }
}

/// Prints a job with the end of its output.
fn show(session: &Session, jobs: &Jobs, id: u64) -> Outcome {
    let output = jobs.output(id, 0);
    let output = output.ok_or_else(|| session.fail(format!("there is no job {id}")))?;
    let job = output.job;
    let line = |key: &str, value: &str| session.out.line(format!("{key}\t{value}"));
    line("command", &job.command);
    line("state", job.state.as_str());
    line("user", &job.user);
    line("from", &job.origin);
    line("started", &date(job.started));
    if let Some(ended) = job.ended {
        line("ended", &date(ended));
    }
    if let Some(code) = job.exit {
        line("exit", &code.to_string());
    }
    if !output.text.is_empty() {
        session.out.line("");
        session.out.text(output.text);
    }
    Ok(())
}
