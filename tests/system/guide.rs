//! The commands of the guide and of the README: each one is run, in the order of its page, or `tests/guide/PAGE.txt` says what it needs
//! that a test does not have. A command that a page gains, loses or changes has to be there.
//!
//! A line of these files begins with a mark: `> ` is a command of the page, which must succeed; `~ ` one that goes on until it is
//! ended, and prints something before; `- ` one that is not run, with the reason before `: `; `$ ` what the page takes for granted
//! (disks, files, data), or what shows that a command has done its work; `! ` starts (`serve FLAGS`) or stops the daemon; `= ` has a
//! word (a path, a host) stand for another one in the commands of the page that follow, a path that ends with `/` with all below it.
//! Variables last from line to line.

use std::fs;
use std::time::Duration;

use tests::{free_port, skip};

use crate::cli::Place;

/// Programs that the guide has commands of; in other indented lines the first word is none of these.
const PROGRAMS: &[&str] = &[
    "KEY=$(sanbox",
    "apt",
    "cargo",
    "curl",
    "install",
    "iscsiadm",
    "ln",
    "ls",
    "make",
    "mount",
    "nbd-client",
    "qemu-img",
    "sanbox",
    "ssh",
    "token=$(ssh",
    "useradd",
    "zfs",
    "zpool",
];

/// How long an endless command runs, and once more when it said nothing in that time.
const ENDLESS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(60)];

/// Returns the commands of a page: indented lines, without remarks, continued lines as one.
fn commands(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut continued = false;
    for line in page.lines() {
        let text = line.trim();
        let begins = line.starts_with("    ")
            && text
                .split(' ')
                .next()
                .is_some_and(|word| PROGRAMS.contains(&word));
        if !begins && !continued {
            continue;
        }
        let (part, goes_on) = match text.strip_suffix('\\') {
            Some(part) => (part.trim_end(), true),
            None => (text.split(" # ").next().unwrap_or(text).trim_end(), false),
        };
        match found.last_mut().filter(|_| continued) {
            Some(command) => command.push_str(&format!(" {part}")),
            None => found.push(part.to_owned()),
        }
        continued = goes_on;
    }
    found
}

/// Puts the words of a test in the place of those of the page; the last rule that fits a word counts.
fn put_in(rules: &[(String, String)], command: &str) -> String {
    let word = |word: &str| {
        let fits = |(from, to): &(String, String)| {
            let rest = word.strip_prefix(from.as_str())?;
            (rest.is_empty() || from.ends_with('/')).then(|| format!("{to}{rest}"))
        };
        rules
            .iter()
            .rev()
            .find_map(fits)
            .unwrap_or_else(|| word.to_owned())
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Runs a line; returns what is wrong with how it went.
fn run(place: &Place, line: &str, endless: bool) -> Option<String> {
    if !endless {
        return run_once(place, line, false);
    }
    let mut wrong = None;
    for limit in ENDLESS {
        wrong = run_once(place, &format!("timeout {} {line}", limit.as_secs()), true);
        if wrong.is_none() {
            break;
        }
    }
    wrong
}

fn run_once(place: &Place, line: &str, endless: bool) -> Option<String> {
    let script = format!(
        "set -a; . ./.variables 2>/dev/null\n{line}\nended=$?; declare -px >.variables; exit $ended"
    );
    let mut command = place.command("timeout");
    command
        .args(["300", "bash", "-c", &script])
        .env("GOLDEN", tests::root().join("tests/golden"));
    let output = command.output().expect("a shell");
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    let right = if endless {
        // Ended by the limit, not by itself.
        output.status.code() == Some(124) && !said.is_empty()
    } else {
        output.status.success()
    };
    (!right).then(|| {
        format!(
            "$ {line}\n{}\n{}",
            String::from_utf8_lossy(&said),
            output.status
        )
    })
}

/// Plays the file of a page; returns what went wrong.
fn play(page: &str, text: &str) -> Vec<String> {
    let name = page
        .rsplit('/')
        .next()
        .unwrap_or(page)
        .trim_end_matches(".md");
    let mut wanted = commands(text).into_iter();
    let script = tests::root()
        .join("tests/guide")
        .join(format!("{name}.txt"));
    let script = fs::read_to_string(script).unwrap_or_default();
    let mut place = Place::new();
    let https = free_port().to_string();
    let mut rules: Vec<(String, String)> = Vec::new();
    let mut wrong = Vec::new();
    for line in script
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (mark, rest) = line.split_once(' ').expect("a mark and a text");
        let rest = rest.replace("HTTPS_PORT", &https);
        let of_page = match mark {
            "-" => rest.split_once(": ").map(|(_, command)| command.to_owned()),
            ">" | "~" => Some(rest.clone()),
            _ => None,
        };
        if of_page.is_some() {
            assert_eq!(
                of_page,
                wanted.next(),
                "{page}: commands of the page, in its order"
            );
        }
        match mark {
            "-" => {}
            "=" => {
                let (from, to) = rest.split_once(' ').expect("a word and what stands for it");
                rules.push((from.to_owned(), to.to_owned()));
            }
            "!" => {
                place.stop();
                if let Some(flags) = rest.strip_prefix("serve") {
                    let quiet = "--nfs-port 0 --no-portmap --iscsi-port 0 --metrics-port 0 --nbd-port 0 --https-port";
                    let all = format!("{quiet} {https}{flags}");
                    place.serve(
                        &all.split(' ')
                            .filter(|flag| !flag.is_empty())
                            .collect::<Vec<_>>(),
                    );
                }
            }
            "$" => wrong.extend(run(&place, &rest, false)),
            ">" | "~" => wrong.extend(run(&place, &put_in(&rules, &rest), mark == "~")),
            other => panic!("{page}: the mark {other}"),
        }
    }
    assert_eq!(
        wanted.next(),
        None,
        "{page}: its commands are in tests/guide/{name}.txt"
    );
    place.stop();
    let _ = place.run("umount -l */ 2>/dev/null");
    wrong
}

fn missing() -> Option<&'static str> {
    let found = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
    let has = |program: &&str| {
        found
            .iter()
            .any(|bin| fs::exists(format!("{bin}/{program}")).unwrap_or(false))
    };
    if !Place::new().run("id -u").starts_with("0\n") || !fs::exists("/dev/fuse").unwrap_or(false) {
        Some("only root mounts, where there is FUSE")
    } else if !["smbd", "qemu-img", "zstd", "curl"].iter().all(has) {
        Some("samba, qemu-utils, zstd or curl is not installed")
    } else {
        None
    }
}

#[test]
#[ignore = "long: each page of the guide, by daemons of its own"]
fn every_command_of_the_guide_is_run_or_named() {
    if let Some(why) = missing() {
        return skip("the commands of the guide", why);
    }
    let guide = fs::read_dir(tests::root().join("docs/guide")).expect("the guide");
    let names = guide.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .to_string_lossy()
            .into_owned()
    });
    let pages = names.filter(|name| name.ends_with(".md") && name != "README.md");
    let mut pages: Vec<String> = pages.map(|name| format!("docs/guide/{name}")).collect();
    pages.push("README.md".to_owned());
    pages.sort();
    assert!(pages.len() > 10, "{pages:?}");
    let contents = fs::read_to_string(tests::root().join("docs/guide/README.md"));
    let none: Vec<String> = Vec::new();
    assert_eq!(commands(&contents.expect("the contents")), none);
    let mut wrong = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(tests::root().join(page)).expect("a page");
        wrong.extend(
            play(page, &text)
                .into_iter()
                .map(|what| format!("{page}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_of_a_page() {
    let page = "Text with zpool\n\n    zpool list   # a remark\n    curl -x \\\n        y\n    option   meaning\n";
    assert_eq!(commands(page), ["zpool list", "curl -x y"]);
    let rules =
        [("/dev/", "D/"), ("sda", "D/sda")].map(|(from, to)| (from.to_owned(), to.to_owned()));
    assert_eq!(
        put_in(&rules, "zpool add t /dev/sdb sda sdab"),
        "zpool add t D/sdb D/sda sdab"
    );
}
