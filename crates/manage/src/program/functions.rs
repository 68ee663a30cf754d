//! The functions under `zfs` that programs call.
//!
//! OpenZFS: module/zfs/zcp.c, zcp_iter.c, zcp_synctask.c, zcp_global.c (names, texts, numbers of errors).

use engine::{
    DatasetInfo, ProgramAnswer, ProgramCall, ProgramCalls, ProgramChange, ProgramList,
    ProgramRefusal, PropertyQuery,
};
use lua::{CallError, Data, Host, Step};

use super::arguments::Signature;
use super::property::{self, Asked};

/// The numbers of errors that programs know by name.
pub(super) const ERRNOS: &[(&str, i64)] = &[
    ("EPERM", 1),
    ("ENOENT", ENOENT),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", EIO),
    ("ENXIO", 6),
    ("E2BIG", E2BIG),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("ENOTBLK", 15),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("EXDEV", EXDEV),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", EINVAL),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("EDEADLK", 35),
    ("ENAMETOOLONG", ENAMETOOLONG),
    ("ENOLCK", 37),
    ("ENOTSUP", 95),
    ("EDQUOT", 122),
    ("ECANCELED", 125),
];

const ENOENT: i64 = 2;
const EIO: i64 = 5;
const E2BIG: i64 = 7;
const EXDEV: i64 = 18;
const EINVAL: i64 = 22;
const ENAMETOOLONG: i64 = 36;

/// Bytes of the name of a user property, and of its value. OpenZFS: include/sys/zap.h, ZAP_MAXNAMELEN and ZAP_MAXVALUELEN
const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 8191;

/// A change, without what it is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Destroy,
    Promote,
    Rollback,
    Snapshot,
    RenameSnapshot,
    Inherit,
    Bookmark,
    SetProperty,
}

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Debug,
    Exists,
    GetProperty,
    List(ProgramList),
    UserProperties,
    SystemProperties,
    Check(Change),
    Sync(Change),
}

/// All functions; their numbers are their places.
pub(super) const FUNCTIONS: &[(&str, Function)] = &[
    ("zfs.debug", Function::Debug),
    ("zfs.exists", Function::Exists),
    ("zfs.get_prop", Function::GetProperty),
    ("zfs.list.children", Function::List(ProgramList::Children)),
    ("zfs.list.snapshots", Function::List(ProgramList::Snapshots)),
    ("zfs.list.bookmarks", Function::List(ProgramList::Bookmarks)),
    ("zfs.list.clones", Function::List(ProgramList::Clones)),
    ("zfs.list.holds", Function::List(ProgramList::Holds)),
    ("zfs.list.user_properties", Function::UserProperties),
    ("zfs.list.properties", Function::UserProperties),
    ("zfs.list.system_properties", Function::SystemProperties),
    ("zfs.check.destroy", Function::Check(Change::Destroy)),
    ("zfs.check.promote", Function::Check(Change::Promote)),
    ("zfs.check.rollback", Function::Check(Change::Rollback)),
    ("zfs.check.snapshot", Function::Check(Change::Snapshot)),
    (
        "zfs.check.rename_snapshot",
        Function::Check(Change::RenameSnapshot),
    ),
    ("zfs.check.inherit", Function::Check(Change::Inherit)),
    ("zfs.check.bookmark", Function::Check(Change::Bookmark)),
    ("zfs.check.set_prop", Function::Check(Change::SetProperty)),
    ("zfs.sync.destroy", Function::Sync(Change::Destroy)),
    ("zfs.sync.promote", Function::Sync(Change::Promote)),
    ("zfs.sync.rollback", Function::Sync(Change::Rollback)),
    ("zfs.sync.snapshot", Function::Sync(Change::Snapshot)),
    (
        "zfs.sync.rename_snapshot",
        Function::Sync(Change::RenameSnapshot),
    ),
    ("zfs.sync.inherit", Function::Sync(Change::Inherit)),
    ("zfs.sync.bookmark", Function::Sync(Change::Bookmark)),
    ("zfs.sync.set_prop", Function::Sync(Change::SetProperty)),
];

const DATASET: &[(&str, &str)] = &[("dataset", "string")];
const HEAD: &[(&str, &str)] = &[("filesystem | volume", "string")];
const SNAPSHOT: &[(&str, &str)] = &[("snapshot", "string")];
const ANY: &[(&str, &str)] = &[("filesystem | snapshot | volume", "string")];

impl Function {
    fn signature(self, full: &'static str) -> Signature {
        let positional: &[(&str, &str)] = match self {
            Self::Debug => &[("debug string", "string")],
            Self::Exists | Self::SystemProperties | Self::List(ProgramList::Bookmarks) => DATASET,
            Self::GetProperty => &[("dataset", "string"), ("property", "string")],
            Self::List(ProgramList::Children | ProgramList::Snapshots) => HEAD,
            Self::List(ProgramList::Clones | ProgramList::Holds) => SNAPSHOT,
            Self::UserProperties => ANY,
            Self::Check(change) | Self::Sync(change) => match change {
                Change::Destroy => &[("filesystem | snapshot", "string")],
                Change::Promote => &[("clone", "string")],
                Change::Rollback => &[("filesystem", "string")],
                Change::Snapshot => &[("filesystem@snapname | volume@snapname", "string")],
                Change::RenameSnapshot => &[
                    ("filesystem | volume", "string"),
                    ("oldsnapname", "string"),
                    ("newsnapname", "string"),
                ],
                Change::Inherit => &[("dataset", "string"), ("property", "string")],
                Change::Bookmark => &[("snapshot | bookmark", "string"), ("bookmark", "string")],
                Change::SetProperty => &[
                    ("dataset", "string"),
                    ("property", "string"),
                    ("value", "string"),
                ],
            },
        };
        let named: &[(&str, &str)] = match self {
            Self::Check(Change::Destroy) | Self::Sync(Change::Destroy) => &[("defer", "boolean")],
            _ => &[],
        };
        Signature {
            name: full.rsplit('.').next().unwrap_or(full),
            positional,
            named,
        }
    }
}

/// The iterator of user properties comes after those of the lists.
const USER_PROPERTIES: u16 = 5;
const LISTS: [ProgramList; 5] = [
    ProgramList::Children,
    ProgramList::Snapshots,
    ProgramList::Bookmarks,
    ProgramList::Clones,
    ProgramList::Holds,
];

/// Answers the calls of one program.
pub(super) struct ProgramHost {
    pool: String,
    changes: bool,
    calls: ProgramCalls,
    /// User properties of the dataset that a program goes through now.
    user_properties: Option<(String, Vec<Vec<Data>>)>,
}

type Called<T> = Result<T, CallError>;

impl Host for ProgramHost {
    fn call(&mut self, function: u16, arguments: Vec<Data>) -> Called<Vec<Data>> {
        let (name, function) = FUNCTIONS[usize::from(function)];
        let mut texts = Vec::new();
        let mut defer = None;
        for argument in function.signature(name).read(arguments)? {
            match argument {
                Data::String(bytes) => texts.push(text_of(&bytes)),
                Data::Bool(value) => defer = Some(value),
                _ => {}
            }
        }
        let mut texts = texts.into_iter();
        let mut next = || texts.next().unwrap_or_default();
        let first = next();
        match function {
            Function::Debug => Ok(Vec::new()),
            Function::Exists => self.exists(&first),
            Function::GetProperty => self.get_property(&first, &next()),
            Function::List(list) => self.list(list, &first),
            Function::UserProperties => {
                self.info(&first, PropertyQuery::None)?;
                Ok(vec![Data::Iterator(
                    USER_PROPERTIES,
                    format!("0 {first}").into_bytes(),
                )])
            }
            Function::SystemProperties => {
                let query = PropertyQuery::Named(vec!["origin".to_owned()]);
                let info = self.info(&first, query)?;
                Ok(vec![property::system_names(&info)])
            }
            Function::Check(change) | Function::Sync(change) => {
                let makes = matches!(function, Function::Sync(_));
                self.change(change, makes, first, [next(), next()], defer)
            }
        }
    }

    fn next(&mut self, iterator: u16, cursor: &[u8]) -> Called<Step> {
        let cursor = String::from_utf8_lossy(cursor).into_owned();
        let (at, of) = cursor.split_once(' ').unwrap_or_default();
        let at: u64 = at.parse().unwrap_or(0);
        match LISTS.get(usize::from(iterator)) {
            Some(list) => self.next_item(*list, at, of),
            None => self.next_user_property(at, of),
        }
    }
}

/// A text of C ends before its first zero byte.
fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn error(message: String) -> CallError {
    CallError::Error(message)
}

impl ProgramHost {
    pub(super) fn new(pool: String, changes: bool, calls: ProgramCalls) -> Self {
        Self {
            pool,
            changes,
            calls,
            user_properties: None,
        }
    }

    fn ask(&self, call: ProgramCall) -> Called<Result<ProgramAnswer, ProgramRefusal>> {
        self.calls.ask(call).ok_or(CallError::Canceled)
    }

    fn is_in_pool(&self, name: &str) -> bool {
        name.split(['/', '@', '#']).next() == Some(self.pool.as_str())
    }

    /// The error of a dataset, which is the first argument, that cannot be reached.
    fn hold_error(&self, name: &str, number: i64) -> CallError {
        let pool = &self.pool;
        match number {
            ENOENT => CallError::Argument(1, format!("no such dataset '{name}'")),
            EXDEV => CallError::Argument(
                1,
                format!("dataset '{name}' is not in the target pool '{pool}'"),
            ),
            EIO => error(format!("I/O error while accessing dataset '{name}'")),
            number => error(format!(
                "unexpected error {number} while accessing dataset '{name}'"
            )),
        }
    }

    fn find(&self, name: &str) -> Called<(u64, bool)> {
        if !self.is_in_pool(name) {
            return Err(self.hold_error(name, EXDEV));
        }
        match self.ask(ProgramCall::Find(name.to_owned()))? {
            Ok(ProgramAnswer::Found {
                object,
                is_snapshot,
            }) => Ok((object, is_snapshot)),
            Ok(_) => unreachable!("a search is answered so"),
            Err(refusal) => Err(self.hold_error(name, refusal.number.into())),
        }
    }

    fn exists(&self, name: &str) -> Called<Vec<Data>> {
        if !self.is_in_pool(name) {
            return Err(error(format!("dataset '{name}' is not in the target pool")));
        }
        match self.ask(ProgramCall::Find(name.to_owned()))? {
            Ok(_) => Ok(vec![Data::Bool(true)]),
            Err(refusal) => match refusal.number.into() {
                ENOENT => Ok(vec![Data::Bool(false)]),
                EIO => Err(error(format!("I/O error opening dataset '{name}'"))),
                number => Err(error(format!("unexpected error {number}"))),
            },
        }
    }

    fn info(&self, name: &str, query: PropertyQuery) -> Called<Box<DatasetInfo>> {
        if !self.is_in_pool(name) {
            return Err(self.hold_error(name, EXDEV));
        }
        let dataset = name.to_owned();
        match self.ask(ProgramCall::Properties { dataset, query })? {
            Ok(ProgramAnswer::Properties(info)) => Ok(info),
            Ok(_) => unreachable!("a question for properties is answered so"),
            Err(refusal) => Err(self.hold_error(name, refusal.number.into())),
        }
    }

    fn get_property(&self, dataset: &str, name: &str) -> Called<Vec<Data>> {
        let asked = property::asked(name);
        match &asked {
            Asked::Unknown => return Err(error(format!("'{name}' is not a valid property"))),
            Asked::OfUsers
                if name
                    .rsplit('@')
                    .next()
                    .is_none_or(|id| id.parse::<i64>().is_err()) =>
            {
                self.find(dataset)?;
                let message =
                    format!("property '{name}' is not a valid property on dataset '{dataset}'");
                return Err(error(message));
            }
            Asked::Written => {
                // Without an '@' of its own, the name is that of a snapshot of the dataset.
                let since = &name["written@".len()..];
                let mark = &name["written".len().."written@".len()];
                let since = if since.contains(['@', '#']) {
                    since.to_owned()
                } else {
                    format!("{dataset}{mark}{since}")
                };
                if mark == "@" {
                    self.find(dataset)?;
                    self.find(&since)?;
                }
            }
            _ => {}
        }
        let query = PropertyQuery::Named(vec![name.to_owned()]);
        let info = self.info(dataset, query)?;
        let native = match &asked {
            Asked::Native(property) => property.name(),
            _ => name,
        };
        Ok(property::shown(&info, native, &asked))
    }

    fn list(&self, list: ProgramList, name: &str) -> Called<Vec<Data>> {
        let (object, is_snapshot) = self.find(name)?;
        let refused = match list {
            ProgramList::Clones | ProgramList::Holds if !is_snapshot => {
                format!("{name} is not a snapshot")
            }
            ProgramList::Children | ProgramList::Snapshots if is_snapshot => {
                format!("argument {name} cannot be a snapshot")
            }
            ProgramList::Bookmarks if is_snapshot => format!("{name} is a snapshot"),
            _ => {
                let number = LISTS
                    .iter()
                    .position(|known| *known == list)
                    .expect("all lists are there");
                let number = u16::try_from(number).expect("they are few");
                return Ok(vec![Data::Iterator(
                    number,
                    format!("0 {object}").into_bytes(),
                )]);
            }
        };
        Err(CallError::Argument(1, refused))
    }

    fn next_item(&self, list: ProgramList, cookie: u64, of: &str) -> Called<Step> {
        let of = of.parse().unwrap_or(0);
        let item = match self.ask(ProgramCall::Next { list, of, cookie })? {
            Ok(ProgramAnswer::Item(item)) => item,
            Ok(_) => unreachable!("a question for the next item is answered so"),
            // Of a dataset that is gone, these have no items.
            Err(refusal)
                if i64::from(refusal.number) == ENOENT
                    && !matches!(list, ProgramList::Children | ProgramList::Snapshots) =>
            {
                None
            }
            Err(refusal) => {
                let number = refusal.number;
                return Err(error(format!(
                    "unexpected error {number} from dsl_dataset_hold_obj(dsobj)"
                )));
            }
        };
        let Some(item) = item else {
            return Ok(Step::default());
        };
        let mut values = vec![Data::text(&item.name)];
        if list == ProgramList::Holds {
            values.push(Data::Int(item.time.cast_signed()));
        }
        Ok(Step {
            cursor: format!("{} {of}", item.cookie).into_bytes(),
            values,
        })
    }

    fn next_user_property(&mut self, at: u64, dataset: &str) -> Called<Step> {
        if self
            .user_properties
            .as_ref()
            .is_none_or(|(known, _)| known != dataset)
        {
            let info = self.info(dataset, PropertyQuery::All)?;
            self.user_properties = Some((dataset.to_owned(), property::of_user(&info)));
        }
        let known = self.user_properties.as_ref().map(|(_, list)| list);
        let index = usize::try_from(at).unwrap_or(usize::MAX);
        let values = known
            .and_then(|list| list.get(index))
            .cloned()
            .unwrap_or_default();
        Ok(Step {
            cursor: format!("{} {dataset}", at + 1).into_bytes(),
            values,
        })
    }

    /// Makes a change, or checks it: the number of the error, and what is known about it.
    fn change(
        &mut self,
        change: Change,
        makes: bool,
        first: String,
        [second, third]: [String; 2],
        defer: Option<bool>,
    ) -> Called<Vec<Data>> {
        if change == Change::Destroy && defer.is_some() && !first.contains('@') {
            return Err(error(format!(
                "'deferred' kwarg only supported for snapshots: {first}"
            )));
        }
        let refused = self.refused_at_once(change, &first, &second, &third);
        if makes && !self.changes {
            let words = "running functions from the zfs.sync submodule requires passing sync=TRUE to lzc_channel_program() (i.e. do not \
                         specify the \"-n\" command line argument)";
            return Err(error(words.to_owned()));
        }
        if let Some(number) = refused {
            return Ok(vec![Data::Int(number)]);
        }
        let target = if makes && change == Change::Rollback {
            self.newest_snapshot(&first)?
        } else {
            None
        };
        let wanted = full_change(change, first.clone(), second, third, defer.unwrap_or(false));
        let call = if makes {
            ProgramCall::Change(wanted)
        } else {
            ProgramCall::Check(wanted)
        };
        if makes {
            self.user_properties = None;
        }
        match self.ask(call)? {
            Ok(_) => {
                let details =
                    target.map(|name| Data::Table(vec![(Data::text("target"), Data::text(&name))]));
                Ok([Data::Int(0)].into_iter().chain(details).collect())
            }
            Err(refusal) => {
                let number = i64::from(refusal.number);
                if makes && number == EIO {
                    return Err(self.hold_error(&first, EIO));
                }
                let mut answer = vec![Data::Int(number)];
                if !refusal.conflicts.is_empty() {
                    answer.push(property::array(
                        refusal.conflicts.iter().map(String::as_str),
                    ));
                }
                Ok(answer)
            }
        }
    }

    /// The number of the error of a change that the pool need not be asked about.
    fn refused_at_once(
        &self,
        change: Change,
        first: &str,
        second: &str,
        third: &str,
    ) -> Option<i64> {
        match change {
            Change::Snapshot if !first.contains('@') => Some(EINVAL),
            Change::SetProperty if !second.contains(':') => Some(EINVAL),
            Change::SetProperty if second.len() > NAME_BYTES_MAX => Some(ENAMETOOLONG),
            Change::SetProperty if third.len() > VALUE_BYTES_MAX => Some(E2BIG),
            Change::Inherit if !property::can_be_cleared(second) => Some(EINVAL),
            _ if !self.is_in_pool(first) => Some(EXDEV),
            _ => None,
        }
    }

    fn newest_snapshot(&self, dataset: &str) -> Called<Option<String>> {
        let query = PropertyQuery::Named(vec!["prevsnap".to_owned()]);
        let dataset = dataset.to_owned();
        let answer = self.ask(ProgramCall::Properties { dataset, query })?;
        Ok(match answer {
            Ok(ProgramAnswer::Properties(info)) => {
                let found = info.property("prevsnap");
                found.and_then(|property| property.value.text().map(str::to_owned))
            }
            // The change says what is wrong.
            _ => None,
        })
    }
}

fn full_change(
    change: Change,
    first: String,
    second: String,
    third: String,
    defer: bool,
) -> ProgramChange {
    match change {
        Change::Destroy => ProgramChange::Destroy { name: first, defer },
        Change::Promote => ProgramChange::Promote { name: first },
        Change::Rollback => ProgramChange::Rollback { name: first },
        Change::Snapshot => ProgramChange::Snapshot { name: first },
        Change::RenameSnapshot => ProgramChange::RenameSnapshot {
            dataset: first,
            from: second,
            to: third,
        },
        Change::Inherit => ProgramChange::Inherit {
            name: first,
            property: second,
        },
        Change::Bookmark => ProgramChange::Bookmark {
            source: first,
            name: second,
        },
        Change::SetProperty => ProgramChange::SetUserProperty {
            name: first,
            property: second,
            value: third,
        },
    }
}
