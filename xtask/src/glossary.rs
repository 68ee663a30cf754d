//! The glossary lists the words that the sources use, and no others.

/// Refuses words of the first column of a glossary's table that `sources` (in lower case) do not have.
pub(crate) fn check(glossary: &str, sources: &str, findings: &mut Vec<String>) {
    let mut count = 0;
    for word in words(glossary) {
        count += 1;
        let word = word.to_lowercase();
        if !sources.contains(&word) && !sources.contains(&word.replace(' ', "_")) {
            findings.push(format!(
                "docs/glossary.md: '{word}' is a word that no source uses"
            ));
        }
    }
    if count == 0 {
        findings.push("docs/glossary.md: no table of words was found".to_owned());
    }
}

/// The words of the first column.
fn words(glossary: &str) -> impl Iterator<Item = &str> {
    let rows = glossary
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    rows.map(|(column, _)| column)
        .filter(|column| *column != "word" && !column.starts_with("---"))
        .flat_map(|column| column.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_not_used_are_refused() {
        let check = |glossary: &str, expect: &[&str]| {
            let mut findings = Vec::new();
            check(glossary, "let unlinked_set; // a space map", &mut findings);
            let all = findings.iter().zip(expect);
            assert!(all.clone().all(|(a, b)| a.contains(b)), "{findings:?}");
            assert_eq!(findings.len(), expect.len(), "{findings:?}");
        };
        let head = "| word | meaning |\n| --- | --- |\n";
        check(&format!("{head}| unlinked set, space map | x |\n"), &[]);
        check(
            &format!("{head}| dbuf, Space Map | x |\n"),
            &["'dbuf' is a word"],
        );
        check("no table", &["no table of words"]);
    }
}
