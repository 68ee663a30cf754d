//! `sanbox log`: which events the daemon writes to its log, shown and changed while it runs.

use crate::cli::{Outcome, Session};
use crate::logging;

use super::Arguments;

pub(super) fn run(session: &Session, args: &Arguments) -> Outcome {
    let Some(mut levels) = logging::levels() else {
        return Err(session.fail(
            "no daemon runs, so there is no log; for every start, put level = 'LEVELS' under [log] in sanbox.toml",
        ));
    };
    if args.operands.is_empty() {
        session.out.line(levels.to_string());
        return Ok(());
    }
    for text in &args.operands {
        levels = levels.with(text).map_err(|why| session.misuse(why))?;
    }
    logging::set_levels(levels).map_err(|why| session.fail(format!("cannot set levels: {why}")))
}
