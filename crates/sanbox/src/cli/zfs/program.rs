//! `zfs program`: a channel program.
//!
//! The program is read where the command is given, and comes here as the command's input.
//!
//! OpenZFS: cmd/zfs/zfs_main.c, `zfs_do_channel_program` (words, forms).

use engine::EngineError;
use manage::program::{
    self, ChannelProgram, INSTRUCTIONS_DEFAULT, MEMORY_BYTES_DEFAULT, ProgramFailure, ProgramValue,
    TEXT_BYTES_MAX,
};

use crate::cli::command::{Command, Word, options};
use crate::cli::out::Stream;
use crate::cli::{Exit, Outcome, Session};

options! {
    ProgramOption {
        Json = both('j', "json", None, "print what the program returns as JSON"),
        Instructions(String) = valued('t', "instruction-limit", "Lua instructions that may be run (10 million; at most 100 million)"),
        Memory(String) = valued('m', "memory-limit", "bytes of memory that may be used (10 MiB; at most 100 MiB)"),
        DryRun = short('n', "the program only looks: zfs.sync is refused, and nothing is written"),
    }
}

/// The declaration of `zfs program`.
pub(super) const PROGRAM: Command = Command {
    name: "program",
    summary: "run a channel program",
    usage: "\tprogram [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n\
         \t    <pool> <program file> [lua args...]\n",
    flags: ProgramOption::FLAGS,
    says_missing: false,
    words: &[Word::Pool, Word::Text],
    text: &[
        "A channel program is Lua 5.2 whose numbers are integers of 64 bits. It changes and looks at the datasets of one pool as a unit: no \
         other change comes between its steps, and all that it changes is on disk at once, or nothing of it after a crash. An error, a \
         limit or an interrupt ends a program, and what it did until then stays done.",
        "zfs.sync has destroy, promote, rollback, snapshot, rename_snapshot, inherit, bookmark and set_prop (for user properties), each with \
         a dry run in zfs.check; zfs.list has children, snapshots, bookmarks, clones, holds, user_properties and system_properties; \
         zfs.exists, zfs.get_prop and zfs.debug are beside them.",
        "While a program runs, what is written to the pool waits for it to end.",
    ],
    examples: &[
        (
            "zfs program -n tank list.lua tank/home",
            "run list.lua, which finds 'tank/home' as (...)['argv'][1] and changes nothing",
        ),
        (
            "zfs program tank - < prune.lua",
            "run what standard input has; 'for s in zfs.list.snapshots(\"tank/a\") do zfs.sync.destroy(s) end' destroys all snapshots of \
             tank/a in one transaction group",
        ),
    ],
    ..Command::NEW
};

/// How a program is to be run and shown.
struct Asked {
    json: bool,
    changes: bool,
    instructions_max: u64,
    memory_bytes_max: u64,
}

/// Reads a number as C does: `0x` is hexadecimal, and a leading zero octal.
fn number(session: &Session, text: &str) -> Result<u64, Exit> {
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, base)
        .map_err(|_| session.misuse(format!("invalid argument '{text}': expected integer")))
}

pub(super) async fn run(session: &Session, arguments: &[String]) -> Outcome {
    let mut asked = Asked {
        json: false,
        changes: true,
        instructions_max: INSTRUCTIONS_DEFAULT,
        memory_bytes_max: MEMORY_BYTES_DEFAULT,
    };
    let operands = session.read_options(arguments, |session, option| {
        match option {
            ProgramOption::Json => asked.json = true,
            ProgramOption::DryRun => asked.changes = false,
            ProgramOption::Instructions(text) => asked.instructions_max = number(session, &text)?,
            ProgramOption::Memory(text) => asked.memory_bytes_max = number(session, &text)?,
        }
        Ok(())
    })?;
    let [name, file, words @ ..] = operands.as_slice() else {
        return Err(session.misuse("invalid number of arguments"));
    };
    let pool = match session.appliance.pool(name).await {
        Ok(pool) => pool,
        Err(error) => {
            session.out.error(format!("cannot open '{name}': {error}"));
            return Err(session.fail(format!("cannot open pool '{name}'")));
        }
    };
    let mounts = session.appliance.mounts().list().into_iter();
    let program = ChannelProgram {
        text: text(session, file).await?,
        arguments: words.to_vec(),
        changes: asked.changes,
        instructions_max: asked.instructions_max,
        memory_bytes_max: asked.memory_bytes_max,
        mounted: mounts.map(|(dataset, _)| dataset).collect(),
    };
    match program::run(&pool, program).await {
        Ok(returned) => {
            session.record(&pool).await;
            show(session, returned.as_ref(), asked.json);
            Ok(())
        }
        Err(failure) => Err(failed(session, failure)),
    }
}

/// The text of the program, which is the command's input.
async fn text(session: &Session, file: &str) -> Result<Vec<u8>, Exit> {
    let shown = if file == "-" { "standard input" } else { file };
    let Some(input) = &session.input else {
        let why = "a program is read where the command is given, and there is no input";
        return Err(session.fail(format!("cannot read '{shown}': {why}")));
    };
    let mut text = Vec::new();
    while let Some(chunk) = input.next().await {
        text.extend_from_slice(&chunk);
        if text.len() > TEXT_BYTES_MAX {
            let limit = format!("a program has at most {TEXT_BYTES_MAX} bytes");
            return Err(session.fail(format!("cannot read '{shown}': {limit}")));
        }
    }
    Ok(text)
}

fn show(session: &Session, returned: Option<&ProgramValue>, json: bool) {
    let push = |bytes: &[u8]| session.out.push(Stream::Out, bytes);
    match returned {
        Some(value) if json => {
            let whole = serde_json::json!({ "return": program::json(value) });
            push(whole.to_string().as_bytes());
        }
        None if json => push(b"{}"),
        None => push(b"Channel program fully executed and did not produce output.\n"),
        Some(value) => {
            push(b"Channel program fully executed and produced output:\n");
            push(&program::text(b"return", value, 4));
        }
    }
}

fn failed(session: &Session, failure: ProgramFailure) -> Exit {
    let text: Vec<u8> = match failure {
        ProgramFailure::Error(text) => text,
        ProgramFailure::TimedOut(text, instructions) => {
            let count = format!("\n{instructions} Lua instructions");
            [text.as_slice(), count.as_bytes()].concat()
        }
        ProgramFailure::Limits => b"Invalid instruction or memory limit.".to_vec(),
        ProgramFailure::Memory => b"Memory limit exhausted.".to_vec(),
        ProgramFailure::ReturnTooLarge => b"Return value too large.".to_vec(),
        ProgramFailure::Pool(EngineError::Permission) => {
            b"Permission denied. Channel programs must be run as root.".to_vec()
        }
        ProgramFailure::Pool(error) => {
            return session.fail(format!("Channel program execution failed: {error}"));
        }
    };
    session
        .out
        .push(Stream::Err, b"Channel program execution failed:\n");
    session.out.push(Stream::Err, text);
    session.out.push(Stream::Err, b"\n");
    Exit(1)
}
