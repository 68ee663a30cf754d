//! What is the matter with a pool and what to do about it: a table from cause to words.
//!
//! The words and codes are OpenZFS's where it knows the cause (lib/libzfs/libzfs_status.c, cmd/zpool/zpool_main.c,
//! print_status_reason), but for one rule: to destroy a pool is advised for nothing. What is missing may come back, and what is
//! damaged may be read in part.

use engine::StatusReason;

use super::model::{Cause, PoolModel};

/// The words for one cause.
pub(super) struct Explanation {
    pub(super) cause: Cause,
    /// What is the matter.
    status: &'static str,
    /// What to do; `{pool}` stands for the name of the pool.
    action: &'static str,
    /// The article of OpenZFS's that tells more.
    pub(super) message_id: Option<&'static str>,
}

const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        cause: Cause::Reported(StatusReason::MissingDeviceReplicated),
        status: "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to \
             continue functioning in a degraded state.",
        action: "Attach the missing device and online it using 'zpool online'.",
        message_id: Some("ZFS-8000-2Q"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::MissingDevice),
        status: "One or more devices could not be opened.  There are insufficient\n\treplicas for the \
             pool to continue functioning.",
        action: "Attach the missing device and online it using 'zpool online'.",
        message_id: Some("ZFS-8000-3C"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::CorruptLabelReplicated),
        status: "One or more devices could not be used because the label is missing or\n\tinvalid.  \
             Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
        action: "Replace the device using 'zpool replace'.",
        message_id: Some("ZFS-8000-4J"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::CorruptLabel),
        status: "One or more devices could not be used because the label is missing \n\tor invalid.  \
             There are insufficient replicas for the pool to continue\n\tfunctioning.",
        action: "Make sure that the pool's own devices are attached under these names, and\n\tonline them using 'zpool online'.  If their labels are lost, restore the\n\tpool from a backup source.",
        message_id: Some("ZFS-8000-5E"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::BadGuidSum),
        status: "One or more devices are missing from the system.",
        action: "Attach the missing\n\tdevices and try again.",
        message_id: Some("ZFS-8000-6X"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::CorruptPool),
        status: "The pool metadata is corrupted and the pool cannot be opened.",
        action: "Run 'zpool export {pool}', then 'zpool import -nF {pool}': it says whether an\n\tearlier state can be recovered.  Otherwise restore the pool from a backup\n\tsource.",
        message_id: Some("ZFS-8000-72"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::CorruptData),
        status: "One or more devices has experienced an error resulting in data\n\tcorruption.  \
             Applications may be affected.",
        action: "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from \
             backup.",
        message_id: Some("ZFS-8000-8A"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::FailingDevice),
        status: "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to \
             correct the error.  Applications are unaffected.",
        action: "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool \
             clear' or replace the device with 'zpool replace'.",
        message_id: Some("ZFS-8000-9P"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::VersionNewer),
        status: "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool cannot \
             be accessed on this system.",
        action: "Access the pool from a system running more recent software, or\n\trestore the pool from \
             backup.",
        message_id: Some("ZFS-8000-A5"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::VersionOlder),
        status: "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, but \
             some features are unavailable.",
        action: "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no longer be \
             accessible on software that does not support\n\tfeature flags.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::HostidMismatch),
        status: "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was \
             previously imported into a system with a different hostid,\n\tand then was verbatim \
             imported into this system.",
        action: "Export this pool on all systems on which it is imported.\n\tThen import it to correct \
             the mismatch.",
        message_id: Some("ZFS-8000-EY"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::HostidActive),
        status: "The pool is currently imported by another system.",
        action: "Export the pool on the other system.  Then 'zpool export {pool}' makes this\n\tone forget it, and 'zpool import {pool}' imports it.",
        message_id: Some("ZFS-8000-EY"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::IoFailureWait),
        status: "One or more devices are faulted in response to IO failures.",
        action: "Make sure the affected devices are connected, then run 'zpool clear'.",
        message_id: Some("ZFS-8000-HC"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::IoFailureContinue),
        status: "One or more devices are faulted in response to IO failures.",
        action: "Make sure the affected devices are connected, then run 'zpool clear'.",
        message_id: Some("ZFS-8000-JQ"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::IoFailureMultihost),
        status: "The pool is suspended because multihost writes failed or were delayed;\n\tanother system \
             could import the pool undetected.",
        action: "Make sure the pool's devices are connected, then export the pool and\n\timport it again.",
        message_id: Some("ZFS-8000-MM"),
    },
    Explanation {
        cause: Cause::Reported(StatusReason::OutOfSpace),
        status: "There was not enough space left to write out what was accepted.  No device\n\tis at fault.  \
             The disks hold everything up to the last complete transaction group.",
        action: "Export the pool and import it again, then remove files or snapshots,\n\tor make room with \
             'zpool add'.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::UnsupportedFeatureRead),
        status: "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s) \
             not supported on this system:",
        action: "Access the pool from a system that supports the required feature(s),\n\tor restore the \
             pool from backup.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::UnsupportedFeatureWrite),
        status: "The pool can only be accessed in read-only mode on this system. It\n\tcannot be accessed \
             in read-write mode because it uses the following\n\tfeature(s) not supported on this \
             system:",
        action: "The pool cannot be accessed in read-write mode. Import the pool with\n\t\"-o \
             readonly=on\", access the pool from a system that supports the\n\trequired feature(s), \
             or restore the pool from backup.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::FaultedDeviceReplicated),
        status: "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas \
             exist for the pool to continue functioning in a\n\tdegraded state.",
        action: "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::FaultedDevice),
        status: "One or more devices are faulted in response to persistent errors.  There are \
             insufficient replicas for the pool to\n\tcontinue functioning.",
        action: "Make sure that the devices are connected, and mark them repaired using\n\t'zpool clear'.  Restore from a backup source what cannot be read then.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::FeaturesDisabled),
        status: "Some supported and requested features are not enabled on the pool.\n\tThe pool can still \
             be used, but some features are unavailable.",
        action: "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer \
             be accessible by software that does not support\n\tthe features. See zpool-features(7) \
             for details.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::Resilvering),
        status: "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
             function, possibly in a degraded state.",
        action: "Wait for the resilver to complete.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::RebuildScrub),
        status: "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is \
             recommended.",
        action: "Use 'zpool scrub' to verify all data checksums.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::OfflineDevice),
        status: "One or more devices has been taken offline by the administrator.\n\tSufficient replicas \
             exist for the pool to continue functioning in a\n\tdegraded state.",
        action: "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Reported(StatusReason::RemovedDevice),
        status: "One or more devices has been removed by the administrator.\n\tSufficient replicas exist \
             for the pool to continue functioning in a\n\tdegraded state.",
        action: "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
        message_id: None,
    },
    Explanation {
        cause: Cause::MissingLogs,
        status: "An intent log record could not be read.\n\tWaiting for administrator intervention to fix the faulted pool.",
        action: "Either restore the affected device(s) and run 'zpool online', or give up what\n\ttheir logs hold: 'zpool export {pool}', then 'zpool import -m {pool}'.",
        message_id: Some("ZFS-8000-K4"),
    },
    Explanation {
        cause: Cause::UnreplayedLog,
        status: "An intent log cannot be replayed by this software.",
        action: "Run 'zpool export {pool}'.  Then import the pool using '-o readonly=on', or\n\timport it once with OpenZFS, which replays the log.",
        message_id: None,
    },
    Explanation {
        cause: Cause::ForeignHost,
        status: "The pool was last accessed by another system.",
        action: "Make sure that no other system uses the pool.  Then 'zpool export {pool}'\n\tmakes this one forget it, and 'zpool import -f {pool}' takes it over.",
        message_id: Some("ZFS-8000-EY"),
    },
    Explanation {
        cause: Cause::NoHostId,
        status: "Another system may have the pool imported, and this one has no host id to\n\ttell it apart.",
        action: "Set a unique hostid with the zgenhostid(8) command.",
        message_id: Some("ZFS-8000-EY"),
    },
    Explanation {
        cause: Cause::EndedElsewhere,
        status: "The pool was exported or destroyed by another system.",
        action: "'zpool export {pool}' makes this system forget it, then it can be imported\n\tagain using 'zpool import'.",
        message_id: None,
    },
    Explanation {
        cause: Cause::Unknown,
        status: "The pool cannot be opened.",
        action: "Correct what is named above, then run the command again.",
        message_id: None,
    },
];

/// Returns the words for what is the matter with a pool; `None` when nothing is.
pub(super) fn explain(model: &PoolModel) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|row| row.cause == model.cause)
}

impl Explanation {
    /// What is the matter, with the details that the tree of devices does not show.
    pub(super) fn status(&self, model: &PoolModel) -> String {
        let mut text = self.status.to_owned();
        let has_details = matches!(
            self.cause,
            Cause::Reported(
                StatusReason::UnsupportedFeatureRead
                    | StatusReason::UnsupportedFeatureWrite
                    | StatusReason::CorruptPool
            ) | Cause::UnreplayedLog
                | Cause::Unknown
        );
        for detail in model.status.details.iter().filter(|_| has_details) {
            text.push_str("\n\t");
            text.push_str(detail);
        }
        text
    }

    /// What to do about it.
    pub(super) fn action(&self, model: &PoolModel) -> String {
        self.action.replace("{pool}", &model.status.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{EngineError, PoolError};

    fn explained(cause: Cause) -> (&'static str, String, String) {
        let mut model = PoolModel {
            cause,
            ..PoolModel::default()
        };
        model.status.name = "tank".to_owned();
        let words = explain(&model).expect("words");
        let code = words.message_id.unwrap_or("");
        (code, words.status(&model), words.action(&model))
    }

    #[test]
    fn an_error_of_opening_has_its_own_words() {
        let names = || vec!["/dev/sdb".to_owned()];
        for (error, code, status, action) in [
            (
                PoolError::MissingDevices { missing: names() },
                "ZFS-8000-3C",
                "insufficient",
                "Attach the missing device and online it using 'zpool online'.",
            ),
            (
                PoolError::MissingLogs { missing: names() },
                "ZFS-8000-K4",
                "intent log",
                "zpool import -m tank",
            ),
            (
                PoolError::ForeignHost {
                    hostname: "other".to_owned(),
                    hostid: 7,
                    last_access: String::new(),
                },
                "ZFS-8000-EY",
                "last accessed by another system",
                "zpool import -f tank",
            ),
            (
                PoolError::ActiveElsewhere {
                    hostname: "other".to_owned(),
                    hostid: 7,
                    forced: false,
                },
                "ZFS-8000-EY",
                "currently imported by another system",
                "Export the pool on the other system",
            ),
            (
                PoolError::NoHostId,
                "ZFS-8000-EY",
                "no host id",
                "zgenhostid",
            ),
            (
                PoolError::UnsupportedForRead { features: names() },
                "",
                "not supported on this system",
                "supports the required feature(s)",
            ),
            (
                PoolError::UnsupportedForWrite { features: names() },
                "",
                "read-only mode",
                "readonly=on",
            ),
            (
                PoolError::UnsupportedVersion(6000),
                "ZFS-8000-A5",
                "newer, incompatible",
                "more recent software",
            ),
            (
                PoolError::Corrupt("a block".to_owned()),
                "ZFS-8000-72",
                "metadata is corrupted",
                "zpool import -nF tank",
            ),
            (
                PoolError::DirtyIntentLog {
                    dataset: "tank/fs".to_owned(),
                    reason: "unknown record".to_owned(),
                },
                "",
                "cannot be replayed",
                "readonly=on",
            ),
            (
                PoolError::Suspended,
                "",
                "cannot be opened",
                "run the command again",
            ),
        ] {
            let text = error.to_string();
            let said = explained(Cause::of(&EngineError::Pool(error)));
            assert_eq!(said.0, code, "{text}");
            assert!(said.1.contains(status), "{text}: {}", said.1);
            assert!(said.2.contains(action), "{text}: {}", said.2);
        }
    }

    /// Which words of a row are OpenZFS's own.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Words {
        /// All.
        Theirs,
        /// What is the matter; what to do about it is said otherwise, or they do not say.
        OurAction,
        /// What to do about it.
        OurStatus,
        /// None: a cause that they do not know.
        Ours,
    }

    /// Each cause with its code, and which words OpenZFS's `zpool` has, too.
    // OpenZFS: lib/libzfs/libzfs_status.c, zfs_msgid_table
    const CODES: &[(Cause, &str, Words)] = &{
        use StatusReason as R;
        use Words::{OurAction, OurStatus, Ours, Theirs};
        [
            (
                Cause::Reported(R::MissingDeviceReplicated),
                "ZFS-8000-2Q",
                Theirs,
            ),
            (Cause::Reported(R::MissingDevice), "ZFS-8000-3C", Theirs),
            (
                Cause::Reported(R::CorruptLabelReplicated),
                "ZFS-8000-4J",
                Theirs,
            ),
            // Theirs destroys the pool.
            (Cause::Reported(R::CorruptLabel), "ZFS-8000-5E", OurAction),
            (Cause::Reported(R::BadGuidSum), "ZFS-8000-6X", OurAction),
            // Theirs destroys the pool.
            (Cause::Reported(R::CorruptPool), "ZFS-8000-72", OurAction),
            (Cause::Reported(R::CorruptData), "ZFS-8000-8A", Theirs),
            (Cause::Reported(R::FailingDevice), "ZFS-8000-9P", Theirs),
            (Cause::Reported(R::VersionNewer), "ZFS-8000-A5", Theirs),
            (Cause::Reported(R::HostidMismatch), "ZFS-8000-EY", Theirs),
            (Cause::Reported(R::HostidActive), "ZFS-8000-EY", OurAction),
            (Cause::NoHostId, "ZFS-8000-EY", OurStatus),
            (Cause::ForeignHost, "ZFS-8000-EY", OurAction),
            (Cause::Reported(R::IoFailureWait), "ZFS-8000-HC", Theirs),
            (Cause::Reported(R::IoFailureContinue), "ZFS-8000-JQ", Theirs),
            // Theirs restarts the machine.
            (
                Cause::Reported(R::IoFailureMultihost),
                "ZFS-8000-MM",
                OurAction,
            ),
            (Cause::MissingLogs, "ZFS-8000-K4", OurAction),
            (Cause::Reported(R::UnsupportedFeatureRead), "", Theirs),
            (Cause::Reported(R::UnsupportedFeatureWrite), "", Theirs),
            (Cause::Reported(R::FaultedDeviceReplicated), "", Theirs),
            // Theirs destroys the pool.
            (Cause::Reported(R::FaultedDevice), "", OurAction),
            (Cause::Reported(R::FeaturesDisabled), "", Theirs),
            (Cause::Reported(R::VersionOlder), "", Theirs),
            (Cause::Reported(R::Resilvering), "", Theirs),
            (Cause::Reported(R::RebuildScrub), "", Theirs),
            (Cause::Reported(R::OfflineDevice), "", Theirs),
            (Cause::Reported(R::RemovedDevice), "", Theirs),
            (Cause::Reported(R::OutOfSpace), "", Ours),
            (Cause::UnreplayedLog, "", Ours),
            (Cause::EndedElsewhere, "", Ours),
            (Cause::Unknown, "", Ours),
        ]
    };

    #[test]
    fn each_cause_has_one_row_and_openzfs_code() {
        assert_eq!(CODES.len(), EXPLANATIONS.len());
        for (cause, code, _) in CODES {
            assert_eq!(explained(*cause).0, *code, "{cause:?}");
            let rows = EXPLANATIONS.iter().filter(|row| row.cause == *cause);
            assert_eq!(rows.count(), 1, "{cause:?}");
        }
    }

    #[test]
    fn the_words_are_those_of_openzfs_zpool() {
        let theirs = ["/usr/sbin/zpool", "/sbin/zpool"]
            .iter()
            .filter_map(|path| std::fs::read(path).ok())
            .find(|bytes| is_in(bytes, "libzfs"));
        let Some(theirs) = theirs else {
            return oracle::skip(
                "the words of zpool status",
                "OpenZFS's zpool is not installed",
            );
        };
        for row in EXPLANATIONS {
            let words = match [row.status, row.action].map(|words| is_in(&theirs, words)) {
                [true, true] => Words::Theirs,
                [true, false] => Words::OurAction,
                [false, true] => Words::OurStatus,
                [false, false] => Words::Ours,
            };
            let cause = row.cause;
            let listed = CODES.iter().find(|(known, ..)| *known == cause);
            assert_eq!(Some(words), listed.map(|row| row.2), "{cause:?}");
        }
    }

    fn is_in(bytes: &[u8], words: &str) -> bool {
        let words = words.as_bytes();
        bytes.windows(words.len()).any(|window| window == words)
    }

    #[test]
    fn destruction_is_advised_for_nothing() {
        for row in EXPLANATIONS {
            for words in [row.status, row.action] {
                assert!(!words.contains("Destroy"), "{words}");
                assert!(!words.contains("re-create"), "{words}");
            }
        }
    }
}
