//! A job as words: those of `sanbox replication create` that make it, and those of `sanbox replication change` that make it of another.

use super::Job;

/// Settings of one kind, by their options.
type Options<T> = &'static [(&'static str, fn(&mut Job) -> &mut T)];

/// Settings that are on or off, by the options that turn them on.
pub const SWITCHES: Options<bool> = &[
    ("recursive", |job| &mut job.recursive),
    ("newest-only", |job| &mut job.newest_only),
    ("take", |job| &mut job.take),
    ("continuous", |job| &mut job.continuous),
    ("raw", |job| &mut job.raw),
    ("no-properties", |job| &mut job.without_properties),
];

/// Settings that are one text, by their options; an empty one is the default.
pub const TEXTS: Options<String> = &[
    ("ssh", |job| &mut job.ssh),
    ("every", |job| &mut job.every),
    ("bandwidth", |job| &mut job.bandwidth),
    ("compress", |job| &mut job.compress),
    ("window", |job| &mut job.window),
    ("keep", |job| &mut job.keep),
    ("test-schedule", |job| &mut job.test_schedule),
];

/// Settings that are lists, by the options that are given once for each entry.
pub const LISTS: Options<Vec<String>> = &[
    ("exclude", |job| &mut job.exclude),
    ("select", |job| &mut job.select),
    ("set", |job| &mut job.set),
    ("not-in-force", |job| &mut job.not_in_force),
];

impl Job {
    /// Returns what follows `sanbox` in the command that makes this job.
    #[must_use]
    pub fn words_of_create(&self) -> Vec<String> {
        let mut words = vec![
            "replication".to_owned(),
            "create".to_owned(),
            self.name.clone(),
            format!("--from={}", self.from),
            format!("--to={}", self.to),
        ];
        words.extend(self.differences(&Self::default()));
        words
    }

    /// Returns what follows `sanbox` in the command that gives the job of this name these settings when it has those of `before`; `None` when
    /// they are the same. Source and target of a job do not change.
    #[must_use]
    pub fn words_of_change(&self, before: &Self) -> Option<Vec<String>> {
        let differences = self.differences(before);
        if differences.is_empty() {
            return None;
        }
        let mut words = vec![
            "replication".to_owned(),
            "change".to_owned(),
            self.name.clone(),
        ];
        words.extend(differences);
        Some(words)
    }

    fn differences(&self, before: &Self) -> Vec<String> {
        let (mut now, mut before) = (self.clone(), before.clone());
        let mut words = Vec::new();
        for (option, field) in SWITCHES {
            match (*field(&mut before), *field(&mut now)) {
                (false, true) => words.push(format!("--{option}")),
                (true, false) => words.push(format!("--off={option}")),
                _ => {}
            }
        }
        for (option, field) in TEXTS {
            if field(&mut before) != field(&mut now) {
                words.push(format!("--{option}={}", field(&mut now)));
            }
        }
        for (option, field) in LISTS {
            let entries = field(&mut now);
            if field(&mut before) == entries {
                continue;
            }
            if entries.is_empty() {
                words.push(format!("--{option}="));
            }
            words.extend(entries.iter().map(|entry| format!("--{option}={entry}")));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_told_in_words_and_a_change_in_what_differs() {
        let plain = Job {
            name: "vm".to_owned(),
            from: "tank/vm".to_owned(),
            to: "root@b:vault/vm".to_owned(),
            ..Job::default()
        };
        assert_eq!(
            plain.words_of_create().join(" "),
            "replication create vm --from=tank/vm --to=root@b:vault/vm"
        );
        let rich = Job {
            recursive: true,
            take: true,
            every: "1m".to_owned(),
            exclude: vec!["tank/vm/a".to_owned(), "tank/vm/b".to_owned()],
            ..plain.clone()
        };
        let tail = "--recursive --take --every=1m --exclude=tank/vm/a --exclude=tank/vm/b";
        assert!(rich.words_of_create().join(" ").ends_with(tail));
        let change = |from: &Job, to: &Job| to.words_of_change(from).map(|words| words.join(" "));
        assert_eq!(change(&plain, &plain), None);
        assert_eq!(
            change(&plain, &rich),
            Some(format!("replication change vm {tail}"))
        );
        assert_eq!(
            change(&rich, &plain).expect("differs"),
            "replication change vm --off=recursive --off=take --every= --exclude="
        );
    }
}
