//! `zpool events`.

use std::time::Duration;

use engine::{NvList, NvValue};

use super::bad_name;
use crate::cli::command::{Command, Word, options};
use crate::cli::format::date_with_seconds;
use crate::cli::{Outcome, Session};

options! {
    EventsOption {
        Verbose = short('v', "with all that is known of each"),
        Scripted = short('H', "no heading, a tab between the columns"),
        Follow = short('f', "go on as they happen"),
        Clear = short('c', "forget the events so far"),
    }
}

/// The declaration of `zpool events`.
pub(super) const EVENTS: Command = Command {
    name: "events",
    summary: "show events of pools and devices",
    usage: "\tevents [-vHf [pool] | -c]\n",
    flags: EventsOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool],
    examples: &[
        (
            "zpool events -f",
            "show what happens to pools and devices, and go on",
        ),
        (
            "zpool events -v tank",
            "what happened to the pool tank lately, with all that is known of it",
        ),
    ],
    ..Command::NEW
};

/// How often a follower looks for news.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How far the values of an event are indented, and those of a list in it.
const INDENT: usize = 8;

// OpenZFS: cmd/zpool/zpool_main.c, zpool_do_events (words and forms)
pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let (mut verbose, mut scripted, mut follow, mut clear) = (false, false, false, false);
    let operands = session.read_options(arguments, |_, option| {
        match option {
            EventsOption::Verbose => verbose = true,
            EventsOption::Scripted => scripted = true,
            EventsOption::Follow => follow = true,
            EventsOption::Clear => clear = true,
        }
        Ok(())
    })?;
    if operands.len() > 1 {
        return Err(session.misuse("too many arguments"));
    }
    let pool = operands.first();
    if let Some(name) = pool.filter(|name| bad_name(name).is_some()) {
        return Err(session.misuse(format!("invalid pool name '{name}'")));
    }
    if clear && (pool.is_some() || verbose || scripted || follow) {
        return Err(session.misuse("invalid options combined with -c"));
    }
    if crate::appliance::is_delegated() {
        return Err(session.fail("cannot get event: permission denied"));
    }
    let events = session.appliance.engine().events();
    if clear {
        let count = events.clear();
        session.out.line(format!("cleared {count} events"));
        return Ok(());
    }
    if !scripted {
        session.out.line(format!("{:<30} CLASS", "TIME"));
    }
    let mut seen = 0;
    loop {
        for (id, event) in events.after(seen) {
            let dropped = id - seen - 1;
            if dropped > 0 && seen > 0 {
                session.out.line(format!("dropped {dropped} events"));
            }
            seen = id;
            let of = event.str("pool");
            if pool.is_some_and(|pool| of.is_some_and(|of| of != pool)) {
                continue;
            }
            let gap = if scripted { '\t' } else { ' ' };
            let class = event.str("class").unwrap_or_default();
            session.out.line(format!("{}{gap}{class}", time(&event)));
            if verbose {
                let mut text = String::new();
                list(&mut text, &event, INDENT);
                text.push('\n');
                session.out.text(text);
            }
        }
        if !follow {
            return Ok(());
        }
        session.out.flush().await?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// `Jun 30 1993 21:49:08.123456789`
fn time(event: &NvList) -> String {
    let (seconds, nanoseconds) = match event.get("time") {
        Some(NvValue::I64Array(time)) if time.len() == 2 => (time[0], time[1]),
        _ => (0, 0),
    };
    let date = date_with_seconds(u64::try_from(seconds).unwrap_or(0));
    let part = |range: std::ops::Range<usize>| date.get(range).unwrap_or_default().to_owned();
    let (day, clock, year) = (part(4..10), part(11..19), part(20..date.len()));
    format!("{day} {year} {clock}.{nanoseconds:09}")
}

fn state(number: u64) -> &'static str {
    match number {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

fn list(text: &mut String, event: &NvList, depth: usize) {
    for (name, value) in event.iter() {
        let name = String::from_utf8_lossy(name);
        text.push_str(&format!("{:depth$}{name} = ", ""));
        match value {
            NvValue::List(inner) => {
                text.push_str("(embedded nvlist)\n");
                list(text, inner, depth + INDENT);
                text.push_str(&format!("{:depth$}(end {name})", ""));
            }
            NvValue::Lists(lists) => {
                text.push_str(&format!("({} embedded nvlists)\n", lists.len()));
                for (index, inner) in lists.iter().enumerate() {
                    text.push_str(&format!(
                        "{:depth$}{name}[{index}] = (embedded nvlist)\n",
                        ""
                    ));
                    list(text, inner, depth + INDENT);
                    text.push_str(&format!("{:depth$}(end {name}[{index}])\n", ""));
                }
                text.push_str(&format!("{:depth$}(end {name})\n", ""));
            }
            NvValue::U64(number) if matches!(&*name, "vdev_state" | "vdev_laststate") => {
                text.push_str(&format!("\"{}\" (0x{number:x})", state(*number)));
            }
            plain => text.push_str(&shown(plain)),
        }
        text.push('\n');
    }
}

fn shown(value: &NvValue) -> String {
    fn each<T: std::fmt::LowerHex>(numbers: &[T]) -> String {
        numbers
            .iter()
            .map(|number| format!("0x{number:x} "))
            .collect()
    }
    let quoted = |bytes: &[u8]| format!("\"{}\"", String::from_utf8_lossy(bytes));
    match value {
        NvValue::Boolean => "1".to_owned(),
        NvValue::BoolValue(value) => u8::from(*value).to_string(),
        NvValue::Byte(number) | NvValue::U8(number) => format!("0x{number:x}"),
        NvValue::I8(number) => format!("0x{number:x}"),
        NvValue::I16(number) => format!("0x{number:x}"),
        NvValue::U16(number) => format!("0x{number:x}"),
        NvValue::I32(number) => format!("0x{number:x}"),
        NvValue::U32(number) => format!("0x{number:x}"),
        NvValue::I64(number) | NvValue::HrTime(number) => format!("0x{number:x}"),
        NvValue::U64(number) => format!("0x{number:x}"),
        NvValue::Str(bytes) => quoted(bytes),
        NvValue::ByteArray(numbers) | NvValue::U8Array(numbers) => each(numbers),
        NvValue::I8Array(numbers) => each(numbers),
        NvValue::I16Array(numbers) => each(numbers),
        NvValue::U16Array(numbers) => each(numbers),
        NvValue::I32Array(numbers) => each(numbers),
        NvValue::U32Array(numbers) => each(numbers),
        NvValue::I64Array(numbers) => each(numbers),
        NvValue::U64Array(numbers) => each(numbers),
        NvValue::StrArray(texts) => texts.iter().map(|text| quoted(text) + " ").collect(),
        _ => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_openzfs_shows_them() {
        let mut event = NvList::new();
        event.insert("version", NvValue::U8(0));
        let event = event
            .with("class", "resource.fs.zfs.statechange")
            .with("vdev_state", 7_u64)
            .with("vdev_laststate", 4_u64)
            .with("detector", NvList::new().with("pool", 0xab_u64))
            .with("time", NvValue::I64Array(vec![16, 1]));
        let mut text = String::new();
        list(&mut text, &event, 8);
        let expected = "        version = 0x0\n        class = \"resource.fs.zfs.statechange\"\n        \
             vdev_state = \"ONLINE\" (0x7)\n        vdev_laststate = \"UNAVAIL\" (0x4)\n        \
             detector = (embedded nvlist)\n                pool = 0xab\n        (end detector)\n        \
             time = 0x10 0x1 \n";
        assert_eq!(text, expected);
    }
}
