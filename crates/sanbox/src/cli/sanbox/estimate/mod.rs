//! `sanbox estimate`: what deduplication or compression would save, before it is turned on.

mod compression;
mod dedup;

use std::time::{Duration, Instant};

use engine::{EstimateProgress, PoolHandle};

use super::Arguments;
use crate::cli::format::{clock, nice_bytes};
use crate::cli::{Exit, Outcome, Session, dataset_clause};

/// How long the engine works on an estimate before it answers.
const STEP: Duration = Duration::from_millis(200);
/// Time between two lines that tell how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    let words: Vec<&str> = args.operands.iter().map(String::as_str).collect();
    let (what, name) = match words[..] {
        [what @ ("dedup" | "compression"), name] => (what, name),
        ["dedup" | "compression"] => return Err(session.misuse("missing dataset argument")),
        ["dedup" | "compression", _, ..] => return Err(session.misuse("too many arguments")),
        _ => return Err(session.misuse("dedup or compression, and a pool or dataset")),
    };
    let work = Work::of(session, args, name).await?;
    match what {
        "dedup" => dedup::run(&work).await,
        _ => compression::run(&work).await,
    }
}

/// What is asked for, and how far it is.
struct Work<'a> {
    session: &'a Session,
    pool: PoolHandle,
    name: &'a str,
    /// Rows or blocks of the sample.
    sample: Option<usize>,
    time: Option<Duration>,
    exact: bool,
    json: bool,
    tells: bool,
}

/// When it began, and when how far it is was told last.
struct Pace<'a> {
    work: &'a Work<'a>,
    begun: Instant,
    told: Instant,
}

impl<'a> Work<'a> {
    async fn of(session: &'a Session, args: &Arguments, name: &'a str) -> Result<Self, Exit> {
        let sample = match args.long("sample") {
            None => None,
            Some(text) => {
                let number = text.parse().ok().filter(|n| (1..=SAMPLE_MAX).contains(n));
                Some(number.ok_or_else(|| {
                    session.misuse(format!("--sample {text}: a number from 1 to {SAMPLE_MAX}"))
                })?)
            }
        };
        let time = match args.long("time") {
            None => None,
            Some(text) => {
                let seconds = super::user::duration(text).filter(|seconds| *seconds > 0);
                Some(Duration::from_secs(seconds.ok_or_else(|| {
                    session.misuse(format!("--time {text}: a time such as 30s, 5m or 1h"))
                })?))
            }
        };
        let pool = session.appliance.pool_of(name).await;
        let pool = pool.map_err(|error| cannot(session, name, &error))?;
        Ok(Self {
            session,
            pool,
            name,
            sample,
            time,
            exact: args.has('p'),
            json: args.has_long("json"),
            tells: args.has('v') || session.caller.terminal,
        })
    }

    fn pace(&self) -> Pace<'_> {
        let now = Instant::now();
        Pace {
            work: self,
            begun: now,
            told: now,
        }
    }

    fn fail(&self, error: &engine::EngineError) -> Exit {
        cannot(self.session, self.name, error)
    }

    fn bytes(&self, bytes: f64) -> String {
        match self.exact {
            true => whole(bytes).to_string(),
            false => nice_bytes(whole(bytes)),
        }
    }

    fn number(&self, number: f64) -> String {
        match self.exact {
            true => whole(number).to_string(),
            false => engine::property::nice_number(whole(number)),
        }
    }
}

impl Pace<'_> {
    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Tells how far it is, now and then.
    async fn tell(&mut self, progress: &EstimateProgress) -> Outcome {
        if !self.work.tells || self.told.elapsed() < TELL_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        let (out, text) = (&self.work.session.out, told(progress, self.elapsed()));
        out.error(format!("{}   {text}", clock()));
        Ok(out.flush().await?)
    }
}

/// Largest sample: some hundred MB of memory.
const SAMPLE_MAX: usize = 4 << 20;

fn cannot(session: &Session, name: &str, error: &engine::EngineError) -> Exit {
    session.fail(format!("cannot open '{name}': {}", dataset_clause(error)))
}

/// How far an estimate is, and how long it may still take.
fn told(progress: &EstimateProgress, elapsed: Duration) -> String {
    if progress.walked {
        return format!(
            "{} of {} blocks read",
            progress.read_blocks, progress.wanted_blocks
        );
    }
    let total = progress.total_bytes.max(1);
    let done = progress.visited_bytes.min(total);
    let mut text = format!(
        "pointers of {} of {} looked at ({}%)",
        nice_bytes(done),
        nice_bytes(total),
        u128::from(done) * 100 / u128::from(total)
    );
    if done > total / 100 {
        let left = elapsed.as_secs_f64() * (real(total - done) / real(done));
        text.push_str(&format!(", about {} s left", whole(left)));
    }
    text
}

/// The nearest whole number; a negative one is none.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, for people; negative ones become 0"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A count as a number to reckon with.
#[allow(
    clippy::cast_precision_loss,
    reason = "an estimate has fewer than 53 bits"
)]
fn real(count: u64) -> f64 {
    count as f64
}

/// A share of something, in percent.
fn percent(part: f64, all: f64) -> f64 {
    if all > 0.0 {
        (100.0 * part / all).clamp(0.0, 100.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_is_told_with_the_time_left() {
        let mut progress = EstimateProgress {
            visited_bytes: 1 << 30,
            total_bytes: 4 << 30,
            ..EstimateProgress::default()
        };
        assert_eq!(
            told(&progress, Duration::from_secs(10)),
            "pointers of 1G of 4G looked at (25%), about 30 s left"
        );
        // Metadata was counted twice: never more than all of it.
        progress.visited_bytes = 5 << 30;
        let text = told(&progress, Duration::from_secs(10));
        assert!(text.contains("(100%), about 0 s left"), "{text}");
        progress.walked = true;
        (progress.read_blocks, progress.wanted_blocks) = (3, 8);
        assert_eq!(told(&progress, Duration::ZERO), "3 of 8 blocks read");
    }
}
