//! `sanbox tune`: limits of caches and cache devices, shown and changed while the pools are in use.

use crate::cli::{Outcome, Session};
use crate::tuning::{TABLE, show};

use super::Arguments;

pub(super) async fn run(session: &Session, args: &Arguments) -> Outcome {
    if args.operands.is_empty() {
        let now = session.appliance.tunables();
        for row in TABLE {
            let value = show(row, &now);
            if args.has('H') {
                session.out.line(format!("{}\t{value}", row.name));
            } else {
                session
                    .out
                    .line(format!("{:<30} {value:>14}  {}", row.name, row.effect));
            }
        }
        return Ok(());
    }
    for operand in &args.operands {
        let Some((name, value)) = operand.split_once('=') else {
            return Err(session.misuse(format!("'{operand}' is not NAME=VALUE")));
        };
        if let Err(why) = session.appliance.tune(name, value).await {
            return Err(session.fail(format!("cannot set '{name}': {why}")));
        }
    }
    if !session.appliance.is_daemon() {
        session.out.error(
            "no daemon runs: the change ended with this command; for every start, put it under [tuning] in sanbox.toml",
        );
    }
    Ok(())
}
