//! `zstream`: looks into send streams, without a pool. Called as `sanbox zstream`, or through a link of that name.

mod dump;
pub(crate) mod nvlist;
mod records;
mod redup;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal as _, Read, Write as _};
use std::process::ExitCode;

use crate::cli::format::nice_number;

/// As OpenZFS's, less what is not here yet.
const USAGE: &str = "usage: zstream command args ...
Available commands are:

\tzstream dump [-vCd] FILE
\t... | zstream dump [-vCd]

\tzstream token resume_token

\tzstream redup [-v] FILE | ...

";

const ON_A_TERMINAL: &str = "Error: The send stream is a binary format and can not be read from a
terminal.  Standard input must be redirected, or a file must be
specified as a command-line argument.";

/// Runs `zstream` with its arguments, and returns the exit status: 1 also for a stream that is cut short or damaged.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    match arguments.split_first() {
        Some((command, rest)) if command == "dump" => dump(rest),
        Some((command, rest)) if command == "token" => token(rest),
        Some((command, rest)) if command == "redup" => redup(rest),
        Some((command, _)) if command == "--help" || command == "-h" => {
            eprint!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::FAILURE
}

/// What the token of an interrupted receive says.
fn token(arguments: &[String]) -> ExitCode {
    let [token] = arguments else {
        return usage();
    };
    match engine::stream::unpack_token(token) {
        Ok(list) => match nvlist::print(&mut io::stdout().lock(), &list, 0) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("Unable to parse resume token: {error}");
            ExitCode::FAILURE
        }
    }
}

fn redup(arguments: &[String]) -> ExitCode {
    let (verbose, name) = match arguments {
        [name] if !name.starts_with('-') => (false, name),
        [option, name] if option == "-v" => (true, name),
        _ => return usage(),
    };
    if io::stdout().is_terminal() {
        eprintln!(
            "Error: Stream can not be written to a terminal.\nYou must redirect standard output."
        );
        return ExitCode::FAILURE;
    }
    let file = match File::open(name) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("Error while opening file '{name}': {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    match redup::redup(file, &mut out).and_then(|done| Ok(out.flush().map(|()| done)?)) {
        Ok(done) => {
            if verbose {
                eprintln!(
                    "converted stream with {} total records, including {} dedup records, using {}B memory.",
                    done.records,
                    done.references,
                    nice_number(done.memory_bytes)
                );
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn dump(arguments: &[String]) -> ExitCode {
    let mut options = dump::Options::default();
    let mut file = None;
    for argument in arguments {
        match argument.strip_prefix('-') {
            Some(letters) if file.is_none() && !letters.is_empty() => {
                for letter in letters.chars() {
                    if !options.set(letter) {
                        eprintln!("invalid option '{letter}'");
                        return usage();
                    }
                }
            }
            _ => file = file.or(Some(argument)),
        }
    }
    let input: Box<dyn Read> = match file {
        Some(name) => match File::open(name) {
            Ok(file) => Box::new(BufReader::with_capacity(1 << 20, file)),
            Err(error) => {
                eprintln!("Error while opening file '{name}': {error}");
                return ExitCode::FAILURE;
            }
        },
        None if io::stdin().is_terminal() => {
            eprintln!("{ON_A_TERMINAL}");
            return ExitCode::FAILURE;
        }
        None => Box::new(BufReader::with_capacity(1 << 20, io::stdin())),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let ended = dump::dump(input, &mut out, options).and_then(|()| Ok(out.flush()?));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output ended: it has seen enough.
        Err(records::ReadError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
