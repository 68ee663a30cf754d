//! The declarations of `zfs send` and `zfs receive`.

use crate::cli::command::{Command, Word};

/// The declaration of `zfs send`.
pub(super) const SEND: Command = Command {
    name: "send",
    summary: "write snapshots as a stream",
    usage: "\tsend [-DLPbcehnpsVvw] [-i|-I snapshot]\n\
         \t     [-R [-X dataset[,dataset]...]]     <snapshot>\n\
         \tsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\n\
         \tsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\n\
         \tsend [-nVvPe] -t <receive_resume_token>\n\
         \tsend [-PnVv] --saved filesystem\n",
    words: &[Word::Snapshot],
    ..Command::NEW
};

/// The declaration of `zfs receive`.
pub(super) const RECEIVE: Command = Command {
    name: "receive",
    aliases: &["recv"],
    summary: "make snapshots of a stream",
    usage: "\treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n\
         \t    <filesystem|volume|snapshot>\n\
         \treceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n\
         \t    [-d | -e] <filesystem>\n\
         \treceive -A <filesystem|volume>\n",
    words: &[Word::Dataset],
    ..Command::NEW
};
