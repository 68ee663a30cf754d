//! `sanbox console` at a terminal: a pseudo-terminal of script(1), at which an answer is typed when its question is shown.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::skip;

use crate::cli::{Place, wait_for};
use crate::console::{browser, serve_with};

/// How long a question may take to come: only what hangs takes this long.
const SHOWN_WITHIN: Duration = Duration::from_secs(180);
/// What the menu ends with.
const MENU: &str = "q) Quit\r\n> ";
/// What the terminal sends for "end of input".
const END_OF_INPUT: &str = "\u{4}";
const INTERRUPT: &str = "\u{3}";

/// A command at a pseudo-terminal.
struct Terminal {
    script: Child,
    keyboard: Option<ChildStdin>,
    screen: Receiver<Vec<u8>>,
    shown: String,
    /// What of `shown` is before the last question that was answered.
    answered: usize,
}

impl Terminal {
    fn start(place: &Place, command: &str) -> Self {
        let mut script = place
            .command("script")
            .args(["-qec", command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script starts");
        let mut output = script.stdout.take().expect("a pipe");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard: script.stdin.take(),
            script,
            screen,
            shown: String::new(),
            answered: 0,
        }
    }

    /// Waits until the terminal shows something behind the last answer, and returns what stands between both.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let new = &self.shown[self.answered..];
            if let Some(at) = new.find(text) {
                let between = new[..at].to_owned();
                self.answered += at + text.len();
                return between;
            }
            let left = SHOWN_WITHIN.saturating_sub(start.elapsed());
            match self.screen.recv_timeout(left) {
                // What is typed and shown here is ASCII.
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(why) => panic!("no '{text}': {why}: {}", self.shown),
            }
        }
    }

    fn type_in(&mut self, keys: &str) {
        let keyboard = self.keyboard.as_mut().expect("not hung up");
        keyboard.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Types an answer when its question is shown; returns what was shown before the question.
    #[track_caller]
    fn answer(&mut self, question: &str, answer: &str) -> String {
        let before = self.wait_for(question);
        self.type_in(&format!("{answer}\n"));
        before
    }

    /// Waits until the command ends, which must be without a failure; returns all that was shown.
    #[track_caller]
    fn end(mut self) -> String {
        let start = Instant::now();
        loop {
            let left = SHOWN_WITHIN.saturating_sub(start.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {}", self.shown),
            }
        }
        let status = self.script.wait().expect("its end");
        assert!(status.success(), "{status}: {}", self.shown);
        std::mem::take(&mut self.shown)
    }

    /// Takes the terminal away, as a connection that breaks does.
    fn hang_up(mut self) {
        self.script.kill().expect("a running script");
        self.script.wait().expect("its end");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already, where all went well.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

fn has_terminals(place: &Place) -> bool {
    let has_script = !place.run("command -v script").is_empty();
    if !has_script {
        skip("a pseudo-terminal", "script(1) is not installed");
    }
    has_script
}

#[test]
fn a_machine_without_a_browser_has_a_menu() {
    let mut place = Place::new();
    if !has_terminals(&place) {
        return;
    }
    let made = place.run(
        "truncate -s 128M a && zpool create -O mountpoint=none tank $PWD/a && zfs create tank/fs && \
         echo 'correct horse battery' > pw && sanbox user add ann --role owner --password-file pw",
    );
    assert_eq!(made, "");
    let port = serve_with(&mut place, &[]);
    let mut terminal = Terminal::start(&place, "sanbox console");
    for (question, answer) in [
        (MENU, "1"),
        (MENU, "2"),
        (MENU, "5"),
        ("File system: ", "tank/fs"),
        ("(empty: nobody): ", "10.0.0.0/24 esx1"),
        (MENU, "4"),
        (MENU, "3"),
        ("User: ", "ann"),
        ("Password: ", "another good password"),
        (MENU, "9"),
        (MENU, "q"),
    ] {
        terminal.answer(question, answer);
    }
    let shown = terminal.end();
    for part in [
        "$ zpool list",
        "all pools are healthy",
        "The console is",
        "$ zfs set sharenfs=rw=@10.0.0.0/24:esx1 tank/fs",
        "tank/fs  sharenfs  rw=@10.0.0.0/24:esx1",
        "$ sanbox user passwd -- ann",
        "'9' is no choice.",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        !shown.contains("another good password"),
        "the password is shown: {shown}"
    );
    assert_eq!(
        place.run("zfs get -Ho value sharenfs tank/fs"),
        "rw=@10.0.0.0/24:esx1\n"
    );
    let credentials = json!({"name": "ann", "password": "another good password"});
    let entered = browser(&place, port).ask("POST", "/api/v1/session", Some(&credentials));
    assert_eq!(entered.0, 201, "{}", entered.1);
    // A name that is none is refused by its command, in words that a terminal does not obey, and the menu goes on.
    let mut terminal = Terminal::start(&place, "sanbox console");
    terminal.answer(MENU, "5");
    terminal.answer("File system: ", "-rf \u{1b}[2J");
    terminal.answer("(empty: nobody): ", "x");
    terminal.answer(MENU, "q");
    let shown = terminal.end();
    assert!(shown.contains("$'-rf \\u001b[2J'"), "{shown:?}");
    assert_eq!(shown.matches("q) Quit").count(), 2, "{shown}");
    place.stop();
}

/// The interrupt key and the end of input at a question lead back to the menu, whose own end of input ends it; what is typed is shown
/// again behind a password that was interrupted.
#[test]
fn a_menu_ends_with_its_input() {
    let place = Place::new();
    if !has_terminals(&place) {
        return;
    }
    let mut terminal = Terminal::start(&place, "sanbox console");
    for (key, status) in [
        (INTERRUPT, "(exit status: 130)"),
        (END_OF_INPUT, "(exit status: 1)"),
    ] {
        terminal.answer(MENU, "3");
        terminal.answer("User: ", "ann");
        terminal.wait_for("Password: ");
        terminal.type_in(key);
        terminal.wait_for(status);
    }
    terminal.answer(MENU, "nine");
    let echoed = terminal.wait_for("'nine' is no choice.");
    assert_eq!(echoed, "nine\r\n");
    terminal.answer(MENU, "5");
    terminal.wait_for("File system: ");
    terminal.type_in(END_OF_INPUT);
    terminal.wait_for(MENU);
    terminal.type_in(END_OF_INPUT);
    terminal.end();
}

/// A terminal that hangs up ends the menu, at whatever question, also where the signal of it is ignored.
#[test]
fn a_menu_ends_with_its_terminal() {
    let place = Place::new();
    if !has_terminals(&place) {
        return;
    }
    let questions: [&[(&str, &str)]; 3] = [&[], &[(MENU, "5")], &[(MENU, "3"), ("User: ", "ann")]];
    for answers in questions {
        let mut terminal = Terminal::start(
            &place,
            "trap \"\" HUP; echo \"process $$.\"; exec sanbox console",
        );
        terminal.wait_for("process ");
        let pid = terminal.wait_for(".");
        for (question, answer) in answers {
            terminal.answer(question, answer);
        }
        terminal.wait_for(match answers.len() {
            0 => MENU,
            1 => "File system: ",
            _ => "Password: ",
        });
        terminal.hang_up();
        // A process that has ended may wait for the machine's first process to take note of it.
        let stat = format!("/proc/{pid}/stat");
        wait_for(&format!("{answers:?}: its end"), || {
            let stat = std::fs::read_to_string(&stat).unwrap_or_default();
            let has_ended = stat.is_empty() || stat.contains(") Z ");
            has_ended.then_some(()).ok_or(stat)
        });
    }
}
