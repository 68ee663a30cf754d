//! How often a report is sent, in the text of `sanbox.toml`.

use toml_edit::{DocumentMut, Item, Table};

use super::Every;
use crate::config::Config;

/// Sets how often; the other lines stay as they are.
///
/// # Errors
/// The text is no configuration, or has the setting in a form that is not changed here.
pub fn set_every(text: &str, every: Every) -> Result<String, String> {
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| error.to_string())?;
    let inline = || "'alerts' is written on one line in sanbox.toml: change it there".to_owned();
    let mut implicit = Table::new();
    implicit.set_implicit(true);
    let alerts = document.entry("alerts").or_insert(Item::Table(implicit));
    let alerts = alerts.as_table_mut().ok_or_else(inline)?;
    let report = alerts.entry("report").or_insert(Item::Table(Table::new()));
    let report = report.as_table_mut().ok_or_else(inline)?;
    report["every"] = toml_edit::value(every.as_str());
    let changed = document.to_string();
    Config::parse(&changed)?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_file_stays() {
        let text =
            "# mine\n[[alerts.syslog]]\nserver = 'log:514'\n\n[nfs]\nport = 2049 # as ever\n";
        let weekly = set_every(text, Every::Weekly).expect("set");
        let config = Config::parse(&weekly).expect("parses");
        assert_eq!(config.alerts.report.every, Every::Weekly);
        assert_eq!(config.alerts.syslog.len(), 1);
        assert!(
            weekly.contains("# mine") && weekly.contains("port = 2049 # as ever"),
            "{weekly}"
        );
        let off = set_every(&weekly, Every::Off).expect("set");
        assert_eq!(
            Config::parse(&off).expect("parses").alerts.report.every,
            Every::Off
        );
        set_every("alerts = { report = { every = 'daily' } }\n", Every::Off).expect_err("inline");
    }
}
