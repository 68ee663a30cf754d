//! `sanbox console` at a terminal: a pseudo-terminal of script(1), at which answers are typed one after the other.

use serde_json::json;
use tests::skip;

use crate::cli::Place;
use crate::console::{browser, serve_with};

/// Types the answers at the menu, half a second apart, and returns what the terminal shows.
fn at_the_menu(place: &Place, answers: &[&str]) -> String {
    let typed: Vec<String> = answers
        .iter()
        .map(|answer| format!("sleep 0.5; printf '%s\\n' '{answer}'"))
        .collect();
    place.run(&format!(
        "({}; sleep 0.5) | script -qec 'timeout 60 sanbox console' /dev/null",
        typed.join("; ")
    ))
}

#[test]
fn a_machine_without_a_browser_has_a_menu() {
    let mut place = Place::new();
    if place.run("command -v script").is_empty() {
        skip("a pseudo-terminal", "script(1) is not installed");
        return;
    }
    let made = place.run(
        "truncate -s 128M a && zpool create -O mountpoint=none tank $PWD/a && zfs create tank/fs && \
         echo 'correct horse battery' > pw && sanbox user add ann --role owner --password-file pw",
    );
    assert_eq!(made, "");
    let port = serve_with(&mut place, &[]);
    let shown = at_the_menu(
        &place,
        &[
            "1",
            "2",
            "5",
            "tank/fs",
            "10.0.0.0/24 esx1",
            "4",
            "3",
            "ann",
            "another good password",
            "9",
            "q",
        ],
    );
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
    let shown = at_the_menu(&place, &["5", "-rf \u{1b}[2J", "x", "q"]);
    assert!(shown.contains("-rf \\u{1b}[2J"), "{shown:?}");
    assert_eq!(shown.matches("q) Quit").count(), 2, "{shown}");
    place.stop();
}
